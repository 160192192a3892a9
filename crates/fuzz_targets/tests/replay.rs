//! Replays the seeds of the fuzz targets, and mutations of them. `FUZZ_SEED=n cargo test -p fuzz_targets` replays
//! other mutations, and `FUZZ_MUTATIONS=n` sets their number for each target.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz_targets::{ALL, Target};
use random::Random;

/// Mutations of each target.
const MUTATIONS: u64 = 2_000;

/// A mutation is cut to this many bytes.
const INPUT_BYTES_MAX: usize = 2_048;

/// As `INPUT_BYTES_MAX`, for the engine, whose time grows with the number of steps.
const ENGINE_INPUT_BYTES_MAX: usize = 384;

/// Bytes that parsers compare with, or that make numbers overflow.
const NOTABLE: &[u8] = b"\0\x01\x7f\x80\xff\r\n\t \"'\\{}[],:;=/.&?%#+*@-0919";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the seeds of a target by their file names.
fn seeds(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = root().join("fuzz/seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().expect("a name in UTF-8").to_owned();
        (name, fs::read(path).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    }
}

/// Returns a range of at most `length_max` of the input's bytes.
fn random_range(input: &[u8], length_max: usize, random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(input.len());
    let length = 1 + random.below(length_max.min(input.len() - start));
    start..(start + length).min(input.len())
}

fn random_byte(random: &mut Random) -> u8 {
    match random.one_in(2) {
        true => NOTABLE[random.below(NOTABLE.len())],
        false => random.bits() as u8,
    }
}

/// Changes an input once. A splice takes bytes from `other`, another seed.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let kind = random.below(7);
    if input.is_empty() && kind != 6 {
        input.push(random_byte(random));
        return;
    }
    match kind {
        0 => {
            let position = random.below(input.len());
            input[position] ^= 1 << random.below(8);
        }
        1 => {
            let position = random.below(input.len());
            input[position] = random_byte(random);
        }
        2 => {
            let position = random.below(input.len() + 1);
            let length = 1 + random.below(4_usize);
            let bytes: Vec<u8> = (0..length).map(|_| random_byte(random)).collect();
            input.splice(position..position, bytes);
        }
        3 => drop(input.drain(random_range(input, 16, random))),
        4 => {
            let range = random_range(input, 64, random);
            let bytes = input[range.clone()].repeat(1 + random.below(8_usize));
            input.splice(range.end..range.end, bytes);
        }
        // The input is cut short.
        5 => input.truncate(random.below(input.len())),
        _ => {
            input.truncate(random.below(input.len() + 1));
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
    }
}

/// Returns a mutation: one to four changes of a seed.
fn mutation(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        mutate(&mut input, &seeds[random.below(seeds.len())], random);
    }
    input
}

/// Runs a target with an input. If it panics, writes the input to a file, and panics with the command that
/// repeats it.
fn run(target: &str, function: Target, input: &[u8], name: &str) {
    if catch_unwind(AssertUnwindSafe(|| function(input))).is_ok() {
        return;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}-{name}"));
    fs::write(&file, input).unwrap();
    let file = file.strip_prefix(root()).unwrap_or(&file).display();
    panic!("the fuzz target {target} panicked; to repeat it: scripts/fuzz {target} {file}");
}

fn replay(target: &str) {
    let (_, function) = ALL.iter().find(|(name, _)| *name == target).expect("a target of ALL");
    let seeds = seeds(target);
    for (name, input) in &seeds {
        run(target, *function, input, name);
    }
    let seed = number_from_env("FUZZ_SEED", 1);
    let length_max = if target == "engine" { ENGINE_INPUT_BYTES_MAX } else { INPUT_BYTES_MAX };
    let seeds: Vec<Vec<u8>> = seeds.into_values().collect();
    for number in 0..number_from_env("FUZZ_MUTATIONS", MUTATIONS) {
        let mut input = mutation(&seeds, &mut Random::of(seed, number));
        input.truncate(length_max);
        run(target, *function, &input, &format!("{seed}-{number}"));
    }
}

/// A test for each target, so that they run beside each other and a failure names its target.
macro_rules! replays {
    ($($target:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];

        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*
    };
}

replays!(answer command config engine mqtt phoenix proxies request_head tls token websocket);

#[test]
fn all_targets_have_a_program_a_test_and_seeds() {
    let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, REPLAYED);
    let folder = root().join("fuzz/fuzz_targets");
    let programs = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut programs: Vec<String> =
        programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    programs.sort();
    assert_eq!(names, programs, "ALL and fuzz/fuzz_targets");
    for name in names {
        assert!(!seeds(name).is_empty(), "fuzz/seeds/{name} has no seed");
        let program =
            fs::read_to_string(root().join(format!("fuzz/fuzz_targets/{name}.rs"))).unwrap();
        let call = format!("fuzz_targets::{name}(data)");
        assert!(program.contains(&call), "fuzz/fuzz_targets/{name}.rs does not call {call}");
    }
}

#[test]
fn mutations_are_the_same_for_the_same_seed_and_differ_from_their_seeds() {
    let seeds = [b"GET /sse HTTP/1.1\r\n\r\n".to_vec(), Vec::new(), b"{}".to_vec()];
    let mutations = |seed| -> Vec<Vec<u8>> {
        (0..500).map(|number| mutation(&seeds, &mut Random::of(seed, number))).collect()
    };
    assert_eq!(mutations(1), mutations(1));
    assert_ne!(mutations(1), mutations(2));
    let unchanged = mutations(1).iter().filter(|input| seeds.contains(input)).count();
    assert!(unchanged < 100, "{unchanged} of 500 mutations change nothing");
}
