//! How fast the WebSocket codec is, on one thread, with no socket:
//!
//! ```sh
//! cargo run --release -p protocol --example ws_speed
//! ```

use std::hint::black_box;
use std::time::Instant;

use protocol::websocket::deflate::{Deflater, Inflater};
use protocol::websocket::frame::{Opcode, apply_mask, encode, encode_masked};
use protocol::websocket::{Context, Decoder, Event, Limits, Role};

const LIMITS: Limits = Limits { frame_bytes_max: 32 << 20, message_bytes_max: 32 << 20 };
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// The best of five runs, in seconds for one call.
fn best(calls: u32, mut call: impl FnMut()) -> f64 {
    let run = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() / f64::from(calls)
    };
    (0..5).map(|_| run(&mut call)).fold(f64::INFINITY, f64::min)
}

/// Decodes copies of `frames`, fed in pieces of `piece` bytes. Gives the seconds without the copy.
fn decode(calls: u32, frames: &[u8], piece: usize, mut inflater: Option<&mut Inflater>) -> f64 {
    let mut buffer = frames.to_vec();
    let copy = best(calls, || {
        buffer.copy_from_slice(frames);
        black_box(&mut buffer);
    });
    let both = best(calls, || {
        buffer.copy_from_slice(frames);
        let mut decoder = Decoder::default();
        let mut cx =
            Context { role: Role::Server, limits: LIMITS, inflater: inflater.as_deref_mut() };
        let mut at = 0;
        while at < buffer.len() {
            let end = buffer.len().min(at + piece);
            let on = &mut |event: Event<'_>| _ = black_box(event);
            at += decoder.feed(&mut cx, &mut buffer[at..end], on).expect("our own frames");
        }
    });
    both - copy
}

fn small() {
    for (what, opcode, payload) in [
        ("ping, empty", Opcode::Ping, 0),
        ("text, 32 B", Opcode::Text, 32),
        ("text, 200 B", Opcode::Text, 200),
        ("binary, 200 B", Opcode::Binary, 200),
    ] {
        let mut frames = Vec::new();
        for _ in 0..256 {
            encode_masked(opcode, false, &vec![b'a'; payload], MASK, &mut frames);
        }
        let seconds = decode(2000, &frames, frames.len(), None) / 256.0;
        println!("decode {what:<24} {:8.1} ns", seconds * 1e9);
    }
    let mut out = Vec::with_capacity(1000);
    let seconds = best(1_000_000, || {
        out.clear();
        encode(Opcode::Text, false, black_box(&[b'a'; 200]), &mut out);
        black_box(&out);
    });
    println!("encode text, 200 B              {:8.1} ns", seconds * 1e9);
}

fn large() {
    let ascii = "a message of plain words, ".repeat(40_000);
    let mixed = "ein größeres Gerät für 日本語 und 😀, ".repeat(24_000);
    for (what, text) in [("ASCII", &ascii), ("mixed scripts", &mixed)] {
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, false, text.as_bytes(), MASK, &mut frame);
        let gigabytes = text.len() as f64 / 1e9;
        for (how, piece) in [("whole", frame.len()), ("in 64 KiB", 64 << 10), ("in 1448 B", 1448)] {
            let seconds = decode(20, &frame, piece, None);
            println!("decode 1 MB text, {what:<13} {how:<9} {:6.2} GB/s", gigabytes / seconds);
        }
    }
    let mut bytes = vec![0; 64 << 10];
    let seconds = best(10_000, || apply_mask(black_box(&mut bytes), MASK, 1));
    println!("unmask 64 KiB                    {:6.2} GB/s", 65_536.0 / 1e9 / seconds);
}

fn deflate() {
    let json = r#"{"topic":"room.42","offset":123456,"data":{"text":"how are you today?","from":"alice"}}"#;
    for (what, payload) in
        [("1 message of JSON", json.to_string()), ("16 KB of it", json.repeat(190))]
    {
        let mut deflater = Deflater::new(6);
        let mut inflater = Inflater::new();
        let packed = deflater.compress(payload.as_bytes(), 15).to_vec();
        let seconds =
            best(2000, || _ = black_box(deflater.compress(black_box(payload.as_bytes()), 15)));
        println!(
            "deflate {what:<23} {:8.0} ns, {} B to {}",
            seconds * 1e9,
            payload.len(),
            packed.len()
        );
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, true, &packed, MASK, &mut frame);
        let seconds = decode(2000, &frame, frame.len(), Some(&mut inflater));
        println!("inflate {what:<23} {:8.0} ns", seconds * 1e9);
    }
    // The dearest input by its size: two bytes for a stream that ends at once.
    let ends = [3, 0].repeat(1 << 19);
    let mut inflater = Inflater::new();
    let seconds =
        best(2, || _ = black_box(inflater.inflate(black_box(&ends), 100).map(<[u8]>::len)));
    println!("inflate 1 MiB of ended streams  {:8.1} ms", seconds * 1e3);
}

fn main() {
    println!("a decoder is {} B", size_of::<Decoder>());
    small();
    large();
    deflate();
}
