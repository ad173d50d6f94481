//! Texts that were damaged at random: they are refused, or they run, but nothing panics.

mod common;

use common::{Flat, bind, launch};
use gshare_sim_ptx::{DeviceMemory, LaunchConfig, Module};

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

const TEXTS: [&str; 4] = [
    include_str!("data/nvrtc_elementwise.ptx"),
    include_str!("data/nvrtc_half.ptx"),
    include_str!("data/numba_saxpy.ptx"),
    include_str!("data/numba_loopsum.ptx"),
];

/// Swaps, drops, repeats or replaces a few words, or cuts the text.
fn damage(text: &str, random: &mut Random) -> String {
    const WORDS: [&str; 24] = [
        "{",
        "}",
        ";",
        ",",
        "[",
        "]",
        "0",
        "-1",
        "99999999999",
        "%r1",
        "%rd2",
        "%p1",
        "%f1",
        ".b8",
        ".v4",
        "ret",
        "@%p1",
        "0f7F800000",
        "call",
        ".param",
        "ld.global.v4.f64",
        "bra",
        "shl.b32",
        "[%rd1+-8]",
    ];
    let mut words: Vec<&str> = text.split_inclusive([' ', '\n', '\t', ',', ';']).collect();
    for _ in 0..=random.below(3) {
        let (at, other) = (random.below(words.len()), random.below(words.len() - 1));
        match random.below(5) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[other]),
            2 => words.swap(at, other),
            3 => words[at] = WORDS[random.below(WORDS.len())],
            _ => {
                let end = words.len() - random.below(40).min(words.len() - 1);
                words.truncate(end);
            }
        }
    }
    words.concat()
}

#[test]
fn damaged_texts_never_panic() {
    let seed = 0x5eed_0fda_3a6e;
    let mut random = Random(seed);
    let (mut refused, mut trapped, mut ended) = (0, 0, 0);
    for round in 0..3000 {
        let text = damage(TEXTS[round % TEXTS.len()], &mut random);
        let Ok(mut module) = Module::parse(&text) else {
            refused += 1;
            continue;
        };
        let mut memory = Flat(Vec::new());
        if module.globals().iter().all(|global| global.size < 1 << 16) {
            bind(&mut module, &mut memory);
        }
        let data = memory.put([[0; 8]; 512]);
        for kernel in module.kernels() {
            let params: Vec<u8> = data
                .to_le_bytes()
                .into_iter()
                .cycle()
                .take(kernel.param_bytes.next_multiple_of(8))
                .collect();
            let config = LaunchConfig {
                block: [40, 1, 1],
                params: &params,
                budget: 20_000,
                ..LaunchConfig::default()
            };
            match module.launch(&kernel.name, &config, &mut memory) {
                Ok(_) => ended += 1,
                Err(_) => trapped += 1,
            }
        }
    }
    println!("seed {seed:#x}: {refused} refused, {trapped} trapped, {ended} ended");
    assert!(
        refused > 300 && trapped > 100 && ended > 100,
        "{refused} {trapped} {ended}"
    );
}

#[test]
fn nesting_and_sizes_are_limited() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let bodies = [
        format!(
            ".global .b8 x[4] = {}1{};",
            "{".repeat(100_000),
            "}".repeat(100_000)
        ),
        format!(
            ".entry k() {{ .reg .b32 %r1; mov.u32 %r1, {}1; }}",
            "-".repeat(100_000)
        ),
        format!(
            ".entry k() {{ .reg .b32 %r1; mov.b32 {}%r1, %r1; }}",
            "{".repeat(100_000)
        ),
        ".entry k() { .local .b8 x[1000000]; ret; }".to_owned(),
        ".entry k() { .local .b8 x[400000]; .local .b8 y[400000]; ret; }".to_owned(),
        ".entry k(.param .b8 x[1000000]) { ret; }".to_owned(),
        ".entry k() { .reg .b32 %r<99999999>; ret; }".to_owned(),
        ".shared .b8 x[99999999]; .entry k() { ret; }".to_owned(),
        ".global .b8 x[99999999999][99999999999]; .entry k() { ret; }".to_owned(),
        ".global .align 3 .b8 x[3];".to_owned(),
    ];
    for body in bodies {
        let error = Module::parse(&format!("{head}{body}")).expect_err(&body[..40.min(body.len())]);
        assert_eq!(error.line, 4, "{error}");
    }
    let module = Module::parse(&format!("{head}.entry k() {{ ret; }}")).expect("an empty kernel");
    let mut memory = Flat(Vec::new());
    assert!(launch(&module, "k", [1; 3], [1; 3], &[], &mut memory).is_ok());
    assert!(memory.load(0, &mut [0]).is_err());
}
