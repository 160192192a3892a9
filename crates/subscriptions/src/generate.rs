//! Generates a follower graph with the shape of a social network: a few users have very many
//! followers, most have a handful.
//!
//! The number of followers of a user falls with the user's rank `r`, from 0, as `1 / (r + 24)` (Zipf and Mandelbrot's
//! law with exponent 1; the 24 prevents that all users follow the first few). Among a million users with 50 edges
//! each, the first has about 170,000 followers, and the last about 5. The number of users that a user follows is
//! log-normal.

use random::Random;

/// The offset that is added to the rank.
const SHIFT: f64 = 24.0;
/// The spread of the number of users that a user follows (sigma of the logarithm).
const SPREAD: f64 = 0.8;
/// No user follows more than this many times the mean.
const DEGREE_MAX: u32 = 20;
/// How often the generator draws again for duplicates before it takes the next free users instead.
const ROUNDS_MAX: usize = 32;

/// The parameters of a graph. The same values give the same graph.
#[derive(Clone, Copy, Debug)]
pub struct Graph {
    /// The number of users. Users are numbers from 0.
    pub users: u32,
    /// How many users each user follows on average. No user follows more than 20 times as many, or themselves.
    pub edges_per_user: u32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Graph {
    /// Returns the edges as (follower, followed), grouped by follower from 0 on, without duplicates.
    pub fn edges(self) -> Edges {
        Edges { graph: self, order: Order::new(&self), follower: 0, followed: Vec::new(), at: 0 }
    }

    /// Returns the user with this rank, which is below `users`. Rank 0 has the most followers.
    pub fn popular(self, rank: u32) -> u32 {
        Order::new(&self).user(rank)
    }
}

/// An iterator over (follower, followed).
pub struct Edges {
    graph: Graph,
    order: Order,
    follower: u32,
    followed: Vec<u32>,
    at: usize,
}

impl Iterator for Edges {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        loop {
            if let Some(followed) = self.followed.get(self.at) {
                self.at += 1;
                return Some((self.follower - 1, *followed));
            }
            if self.follower == self.graph.users {
                return None;
            }
            self.draw();
        }
    }
}

impl Edges {
    /// Draws the users that the next user follows.
    fn draw(&mut self) {
        let Edges { graph, order, follower, followed, at } = self;
        // Each user has a random sequence of its own.
        let mut random = Random::of(graph.seed, u64::from(*follower));
        let degree = degree(graph, &mut random);
        followed.clear();
        for _ in 0..ROUNDS_MAX {
            while followed.len() < degree {
                followed.push(order.user(rank(graph.users, &mut random)));
            }
            followed.sort_unstable();
            followed.dedup();
            followed.retain(|user| user != follower);
            if followed.len() == degree {
                break;
            }
        }
        // Only a user who follows almost all others reaches this loop.
        let mut next = *follower;
        while followed.len() < degree {
            next = (next + 1) % graph.users;
            if let Err(position) = followed.binary_search(&next) {
                followed.insert(position, next);
            }
        }
        *at = 0;
        *follower += 1;
    }
}

fn degree(graph: &Graph, random: &mut Random) -> usize {
    let (mean, others) = (graph.edges_per_user, graph.users - 1);
    // The Box–Muller transform gives a normal distribution.
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
    let degree = f64::from(mean) * (SPREAD * normal - SPREAD * SPREAD / 2.0).exp();
    let degree = (degree + random.unit()).floor() as u32;
    degree.min(mean.saturating_mul(DEGREE_MAX)).min(others) as usize
}

fn rank(users: u32, random: &mut Random) -> u32 {
    let spread = (f64::from(users) + SHIFT) / SHIFT;
    let rank = SHIFT * spread.powf(random.unit()) - SHIFT;
    (rank as u32).min(users - 1)
}

/// A permutation that maps ranks to users.
struct Order {
    users: u64,
    step: u64,
    first: u64,
}

impl Order {
    fn new(graph: &Graph) -> Self {
        let users = u64::from(graph.users.max(1));
        let mut random = Random::new(!graph.seed);
        let mut step = random.below(users) + 1;
        while common_divisor(step, users) != 1 {
            step += 1;
        }
        Order { users, step, first: random.below(users) }
    }

    fn user(&self, rank: u32) -> u32 {
        ((u64::from(rank) * self.step + self.first) % self.users) as u32
    }
}

fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shape_is_a_power_law() {
        let graph = Graph { users: 20_000, edges_per_user: 50, seed: 1 };
        let (mut followers, mut following) = (vec![0u32; 20_000], vec![0u32; 20_000]);
        for (follower, followed) in graph.edges() {
            followers[followed as usize] += 1;
            following[follower as usize] += 1;
        }
        let edges: u32 = following.iter().sum();
        assert!((950_000..1_030_000).contains(&edges), "{edges}");
        following.sort_unstable();
        assert!(following[1000] < 15 && following[10_000] < 40 && following[19_000] > 110);
        let most = *followers.iter().max().unwrap();
        assert!(most > 3_000, "{most}");
        let first = followers[graph.popular(0) as usize];
        assert!(f64::from(first) > f64::from(most) * 0.9, "{first} {most}");
        // At ten times the (shifted) rank, a user has a tenth of the followers.
        let at = |rank: u32| f64::from(followers[graph.popular(rank) as usize]);
        let mean = |ranks: std::ops::Range<u32>| {
            let count = f64::from(ranks.len() as u32);
            ranks.map(at).sum::<f64>() / count
        };
        let ratio = mean(90..110) / mean(1170..1270);
        assert!((8.0..12.0).contains(&ratio), "{ratio}");
    }

    proptest! {
        #[test]
        fn graphs_are_grouped_without_repetition_and_the_same_again(
            users in 0..60u32, edges_per_user in 0..80u32, seed: u64,
        ) {
            let graph = Graph { users, edges_per_user, seed };
            let edges: Vec<_> = graph.edges().collect();
            prop_assert!(edges.is_sorted_by(|one, other| one < other));
            for (follower, followed) in &edges {
                prop_assert!(follower != followed && *follower < users && *followed < users);
            }
            prop_assert_eq!(graph.edges().collect::<Vec<_>>(), edges);
            let mut ranked: Vec<u32> = (0..users).map(|rank| graph.popular(rank)).collect();
            ranked.sort_unstable();
            prop_assert!(ranked.into_iter().eq(0..users));
        }
    }
}
