//! The subjects of a cluster.
//!
//! | subject | carries |
//! | --- | --- |
//! | `PREFIX.s.STREAM` | messages of a stream |
//! | `PREFIX.nodes` | each node's description of itself |
//! | `PREFIX.n.NODE` | requests to one node, replies, and messages that it requested |

use crate::Target;

/// Writes the subjects of a cluster, which all begin with its name.
#[derive(Clone, Debug)]
pub struct Subjects {
    prefix: Box<str>,
}

impl Subjects {
    /// Makes the subjects of the cluster of this name: one or more tokens of NATS, with dots between them.
    pub fn new(name: &str) -> Self {
        Subjects { prefix: name.into() }
    }

    /// Returns the subject of a target.
    ///
    /// ```
    /// use cluster::{Stream, Subjects, Target};
    /// let subjects = Subjects::new("throng");
    /// assert_eq!(subjects.of(Target::Stream(Stream::of("news"))), "throng.s.292");
    /// assert_eq!(subjects.of(Target::Nodes), "throng.nodes");
    /// assert_eq!(subjects.of(Target::Node(model::NodeId(7))), "throng.n.00000007");
    /// ```
    pub fn of(&self, target: Target) -> String {
        let prefix = &self.prefix;
        match target {
            Target::Stream(stream) => format!("{prefix}.s.{}", stream.number()),
            Target::Nodes => format!("{prefix}.nodes"),
            Target::Node(node) => format!("{prefix}.n.{node}"),
        }
    }
}
