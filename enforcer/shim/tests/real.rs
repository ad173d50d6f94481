//! Against NVIDIA's own libcuda, of the two releases that Debian packages. Without a GPU it answers every look-up and
//! refuses every other call; both must reach the program unchanged. `.ci/drivers` fetches the libraries.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; calls C functions"
)]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use gshare_artifacts::{Mode, stage_shim};
use gshare_sim_board::{Board, BoardSpec};
use object::{Object, ObjectSymbol};
use support::client::Library;

/// Releases of the driver with the CUDA version of each.
const RELEASES: [(&str, u32); 2] = [("535", 12_020), ("550", 12_040)];
/// Every CUDA version that introduced a function, and some past the newest.
const VERSIONS: [i32; 44] = [
    0, 1_000, 2_000, 2_010, 2_020, 2_030, 3_000, 3_010, 3_020, 4_000, 4_010, 4_020, 5_000, 5_050,
    6_000, 6_050, 7_000, 7_050, 8_000, 9_000, 9_020, 10_000, 10_010, 10_020, 11_000, 11_010,
    11_020, 11_030, 11_040, 11_050, 11_060, 11_070, 11_080, 12_000, 12_010, 12_020, 12_030, 12_040,
    12_050, 12_060, 12_080, 13_000, 13_050, 99_000,
];

/// The driver's libcuda, where CI put it.
fn release(test: &str, name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let home = target.join(format!("nvidia-{name}"));
    let found = home.join("usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1");
    if found.exists() {
        return Some(found);
    }
    println!("skipped: {test} needs NVIDIA's libcuda {name} (.ci/drivers fetches it)");
    None
}

/// Names of a library's functions.
fn exports(library: &Path) -> BTreeSet<String> {
    let data = fs::read(library).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    let names = defined.filter_map(|symbol| Some(symbol.name().ok()?.to_owned()));
    names.filter(|name| name.starts_with("cu")).collect()
}

/// The name for a function's look-up: without its version and the kind of its default stream.
fn base(name: &str) -> &str {
    let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match plain.rsplit_once("_v") {
        Some((stem, version)) if version.parse::<u32>().is_ok() => stem,
        _ => plain,
    }
}

/// Not a test of its own: prints a library's answer to every look-up, and the exports that `dlsym` finds.
#[test]
fn map() {
    let Ok(library) = std::env::var("MAP_OF") else {
        println!("skipped: runs as a child of another test only");
        return;
    };
    let exports = fs::read_to_string(std::env::var("MAP_NAMES").unwrap()).unwrap();
    let library = Library::open(&library);
    let mut names: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    let mut said = String::from("\n");
    for name in exports.lines() {
        let at = library.find(name) as usize;
        if at == 0 {
            writeln!(said, "lacks {name}").unwrap();
        } else {
            names.entry(at).or_default().push(name);
        }
    }
    let bases: BTreeSet<&str> = exports.lines().map(base).collect();
    // SAFETY: the signature is that of cuda.h.
    let get: unsafe extern "C" fn(*const i8, *mut usize, i32, u64, *mut i32) -> i32 =
        unsafe { std::mem::transmute(library.find("cuGetProcAddress_v2")) };
    for name in bases {
        let symbol = CString::new(name).unwrap();
        for version in VERSIONS {
            for flags in [0, 1, 2, 3, 4, 64] {
                let (mut found, mut status) = (1, 99);
                // SAFETY: all places are valid for the call.
                let code = unsafe {
                    get(
                        symbol.as_ptr(),
                        &raw mut found,
                        version,
                        flags,
                        &raw mut status,
                    )
                };
                let what = match found {
                    0 => "null".to_owned(),
                    1 => "unwritten".to_owned(),
                    at => names.get(&at).map_or("nameless".into(), |n| n.join("|")),
                };
                writeln!(said, "at {name} {version} {flags} = {code} {status} {what}").unwrap();
            }
        }
    }
    println!("{said}mapped");
}

#[derive(Debug)]
struct Map {
    lacks: BTreeSet<String>,
    /// Name, version and flags, each with code, status and the names of the function found.
    answers: BTreeMap<String, String>,
}

fn map_of(library: &Path, names: &BTreeSet<String>, scratch: &Path) -> Map {
    let list = scratch.join("names");
    let text: Vec<&str> = names.iter().map(String::as_str).collect();
    fs::write(&list, text.join("\n")).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "map", "--nocapture"])
        .env("MAP_OF", library)
        .env("MAP_NAMES", &list)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("\nmapped"), "{errors}");
    let lines = said.lines();
    Map {
        lacks: lines
            .clone()
            .filter_map(|line| Some(line.strip_prefix("lacks ")?.to_owned()))
            .collect(),
        answers: lines
            .filter_map(|line| line.strip_prefix("at ")?.split_once(" = "))
            .map(|(asked, answer)| (asked.to_owned(), answer.to_owned()))
            .collect(),
    }
}

/// Whether two libraries give the same answer; a function may have several names.
fn same(one: &str, two: &str) -> bool {
    let parts = |text: &str| {
        let (code, names) = text.rsplit_once(' ').unwrap();
        let names: BTreeSet<String> = names.split('|').map(str::to_owned).collect();
        (code.to_owned(), names)
    };
    let ((code, names), (other, others)) = (parts(one), parts(two));
    code == other && !names.is_disjoint(&others)
}

/// The proxy in front of a driver, without a service for claims.
fn staged(directory: &Path, driver: &Path) -> PathBuf {
    let shim = directory.join("shim");
    let socket = directory.join("no-service");
    stage_shim(&shim, driver, &socket, Mode::Preload).unwrap();
    shim.join("libcuda.so.1")
}

#[test]
fn every_look_up_is_answered_as_without_the_proxy() {
    for (name, _) in RELEASES {
        let Some(driver) = release("every_look_up", name) else {
            continue;
        };
        let scratch = tempfile::tempdir().unwrap();
        let names = exports(&driver);
        let bare = map_of(&driver, &names, scratch.path());
        let shim = map_of(&staged(scratch.path(), &driver), &names, scratch.path());
        assert_eq!(bare.lacks.len() + shim.lacks.len(), 0);
        let found = bare.answers.values().filter(|a| a.starts_with("0 0 cu"));
        println!(
            "{name}: {} look-ups, {} find a function",
            bare.answers.len(),
            found.count()
        );
        let pairs = bare.answers.iter().zip(&shim.answers);
        let differ: Vec<_> = pairs
            .filter(|(a, b)| a.0 != b.0 || !same(a.1, b.1))
            .collect();
        assert!(
            differ.is_empty(),
            "{} differ: {:#?}",
            differ.len(),
            &differ[..differ.len().min(9)]
        );
        assert!(bare.answers.len() > 100_000, "{}", bare.answers.len());
    }
}

#[test]
fn a_name_that_the_driver_lacks_is_not_found_through_the_proxy_either() {
    for (name, _) in RELEASES {
        let Some(driver) = release("a_name_that_the_driver_lacks", name) else {
            continue;
        };
        let scratch = tempfile::tempdir().unwrap();
        let shim = staged(scratch.path(), &driver);
        let own = exports(&driver);
        let all = gshare_shim::table::NAMES
            .iter()
            .chain(gshare_shim::table::passed::NAMES);
        let younger: BTreeSet<String> = all
            .map(|n| (*n).to_owned())
            .filter(|n| !own.contains(n))
            .collect();
        assert!(
            younger.contains("cuDevSmResourceSplit") && younger.len() > 40,
            "{younger:?}"
        );
        let seen = map_of(&shim, &(&own | &younger), scratch.path());
        assert_eq!(seen.lacks, younger, "{name}");
    }
}

/// Functions that the simulated driver reports as missing.
fn lacking() -> BTreeSet<String> {
    include_str!("../../../src/sim/cuda/lacking.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_simulated_driver_answers_look_ups_as_the_real_one() {
    let lacking = lacking();
    for (name, cuda) in RELEASES {
        let Some(driver) = release("the_simulated_driver", name) else {
            continue;
        };
        let scratch = tempfile::tempdir().unwrap();
        let sim = scratch.path().join("sim");
        gshare_artifacts::stage_sim(&sim).unwrap();
        let mut spec = BoardSpec::new(&["h100"]);
        spec.cuda_version = cuda;
        let _board = Board::create(&sim.join("board"), &spec).unwrap();
        let names = exports(&driver);
        let library = sim.join("lib/libcuda.so.1");
        let own = exports(&library);
        let unsaid: Vec<_> = names
            .iter()
            .filter(|n| !own.contains(*n) && !lacking.contains(*n))
            .collect();
        assert!(unsaid.is_empty(), "{name}: not in lacking.txt: {unsaid:#?}");
        let had: Vec<_> = own.intersection(&lacking).collect();
        assert!(had.is_empty(), "in lacking.txt, and there: {had:?}");
        let real = map_of(&driver, &names, scratch.path());
        let simulated = map_of(&library, &names, scratch.path());
        let whole: BTreeSet<&str> = own.iter().map(|n| base(n)).collect();
        // A function that the simulation lacks must be missing, without a substitute.
        let excused = |asked: &str, answer: &str, simulated: &str| {
            let found = answer.rsplit(' ').next().unwrap();
            let lacks = found.split('|').all(|n| lacking.contains(n))
                || !whole.contains(asked.split(' ').next().unwrap());
            lacks && simulated.ends_with(" null")
        };
        let pairs = real
            .answers
            .iter()
            .map(|(asked, answer)| (asked, answer, &simulated.answers[asked]));
        let differ: Vec<_> = pairs.filter(|(_, a, b)| !same(a, b)).collect();
        let (excused, wrong): (Vec<_>, Vec<_>) = differ
            .into_iter()
            .partition(|(asked, answer, simulated)| excused(asked, answer, simulated));
        println!(
            "{name}: {} look-ups, {} of functions that the simulation lacks",
            real.answers.len(),
            excused.len()
        );
        assert!(
            wrong.is_empty(),
            "{name}: {} differ: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(20)]
        );
    }
}

/// Compiles the program beside this test.
fn program(scratch: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real.c");
    let program = scratch.join(name);
    let status = Command::new("cc")
        .args(["-O1", "-Wno-deprecated-non-prototype", "-o"])
        .arg(&program)
        .arg(&source)
        .args(arguments)
        .args(["-ldl"])
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    program
}

/// A program's result with a directory of libraries first: the codes, and the file that answered.
fn said(program: &Path, libraries: &Path, arguments: &[String]) -> (String, String) {
    let output = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (codes, from) = text
        .split_once("\nfrom ")
        .unwrap_or_else(|| panic!("{text}{output:?}"));
    (codes.to_owned(), from.trim().to_owned())
}

#[test]
fn a_program_gets_the_same_codes_however_it_loads_the_library() {
    for (name, cuda) in RELEASES {
        let Some(driver) = release("a_program_gets_the_same_codes", name) else {
            continue;
        };
        let home = driver.parent().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let shim = staged(scratch.path(), &driver);
        let staged = shim.parent().unwrap();
        let loads = program(scratch.path(), "loads", &[]);
        let mut ways = Vec::new();
        for flags in [
            libc::RTLD_LAZY,
            libc::RTLD_NOW,
            libc::RTLD_NOW | libc::RTLD_GLOBAL,
            libc::RTLD_NOW | libc::RTLD_DEEPBIND,
        ] {
            for library in ["libcuda.so.1", "libcuda.so", "/libcuda.so.1", "/libcuda.so"] {
                ways.push((library, flags));
            }
        }
        // No device, before and after.
        let expected = format!("codes 3 100 1 3 0 3 3, version {cuda}");
        for (library, flags) in &ways {
            let at = |dir: &Path| {
                let own = library
                    .strip_prefix('/')
                    .map(|n| dir.join(n).display().to_string());
                vec![own.unwrap_or((*library).to_owned()), flags.to_string()]
            };
            let (bare, from) = said(&loads, home, &at(home));
            assert!(
                from.starts_with(home.to_str().unwrap()),
                "{library} {flags}: {from}"
            );
            let (seen, from) = said(&loads, staged, &at(staged));
            assert!(
                from.starts_with(staged.to_str().unwrap()),
                "{library} {flags}: {from}"
            );
            assert_eq!(
                (&bare, &seen),
                (&expected, &expected),
                "{name}: {library} {flags}"
            );
        }
        for dir in [home, staged] {
            let link = format!("-L{}", dir.display());
            let linked = program(
                scratch.path(),
                "linked",
                &["-DLINKED", &link, "-lcuda", "-Wl,--allow-shlib-undefined"],
            );
            for libraries in [home, staged] {
                let (seen, from) = said(&linked, libraries, &[]);
                assert_eq!(seen, expected, "{name}: linked with {}", dir.display());
                assert!(from.starts_with(libraries.to_str().unwrap()), "{from}");
            }
        }
        println!("{name}: {} ways, and linked: {expected}", ways.len());
    }
}

#[test]
fn the_proxy_of_nvml_has_no_name_that_the_driver_lacks() {
    let functions = |library: &Path| {
        let data = fs::read(library).unwrap();
        let file = object::File::parse(&*data).unwrap();
        let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
        let names = defined.filter_map(|symbol| Some(symbol.name().ok()?.to_owned()));
        names
            .filter(|name| name.starts_with("nvml"))
            .collect::<BTreeSet<_>>()
    };
    for (name, _) in RELEASES {
        let Some(driver) = release("the_proxy_of_nvml", name) else {
            continue;
        };
        let scratch = tempfile::tempdir().unwrap();
        let shim = staged(scratch.path(), &driver);
        let own = functions(&driver.with_file_name("libnvidia-ml.so.1"));
        let proxy = functions(&shim.with_file_name("libnvidia-ml.so.1"));
        let foreign: Vec<_> = proxy.difference(&own).collect();
        assert!(foreign.is_empty(), "{name}: {foreign:?}");
        assert!(proxy.contains("nvmlDeviceGetMemoryInfo"), "{proxy:?}");
    }
}
