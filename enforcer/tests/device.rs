//! The device filter in the real kernel, on nodes without a driver: a granted node gives ENXIO (the open reached the
//! device layer), a refused one EPERM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use gshare_enforcer::cgroup::{ClaimCgroup, ClaimPlace, ClaimTree, OwnTree, Parent};
use gshare_enforcer::device::{DeviceError, DeviceRules, Filters, Guard, GuardRules};
use gshare_enforcer::nodes::{self, Majors};
use support::{TestTree, Waiting};

const OPEN: &str = "No such device or address";
const SHUT: &str = "Operation not permitted";
/// Set for the copy of this program that acts as a service and is killed.
const SERVICE_TREE: &str = "GSHARE_TEST_SERVICE_TREE";

struct Fixture {
    dir: tempfile::TempDir,
    majors: Majors,
    tree: TestTree,
}

impl Fixture {
    fn new() -> Option<Self> {
        let tree = TestTree::new()?;
        let dir = tempfile::tempdir().unwrap();
        let majors = Majors::free_on_this_machine().unwrap();
        if let Err(e) = nodes::make_stand_ins(dir.path(), &majors, &[0, 1, 2, 3]) {
            println!("skipped: {e}");
            return None;
        }
        let fixture = Self { dir, majors, tree };
        let bare = fixture.open_all(None);
        if bare.iter().any(|(_, answer)| answer != OPEN) {
            println!(
                "skipped: nodes in {:?} answer {bare:?} without a filter",
                fixture.dir
            );
            return None;
        }
        let rules = fixture.rules(&[]);
        if let Err(e) = Filters::default().preload(&rules) {
            println!("skipped: {e}");
            return None;
        }
        Some(fixture)
    }

    fn rules(&self, minors: &[u32]) -> DeviceRules {
        DeviceRules::gpus(self.majors.clone(), minors.iter().copied())
    }

    /// Results of opening each node in a *child* of a process moved into the claim.
    fn open_all(&self, claim: Option<&ClaimCgroup>) -> Vec<(String, String)> {
        let names = [
            "nvidia0",
            "nvidia1",
            "nvidia2",
            "nvidia3",
            "nvidiactl",
            "nvidia-uvm",
        ];
        let script: String = names
            .iter()
            .map(|name| format!("cat {}/{name};", self.dir.path().display()))
            .collect();
        let mut shell = Waiting::new(&format!("({script} true) 2>&1"));
        if let Some(claim) = claim {
            claim.move_process(shell.pid(), None).unwrap();
        }
        let (_, output) = shell.finish();
        let answers: Vec<String> = output
            .lines()
            .map(|line| line.rsplit(": ").next().unwrap().to_owned())
            .collect();
        assert_eq!(answers.len(), names.len(), "{output}");
        names.map(str::to_owned).into_iter().zip(answers).collect()
    }

    /// GPUs whose node opens, after checking that the shared nodes do.
    fn visible(&self, claim: &ClaimCgroup) -> Vec<u32> {
        let mut answers = self.open_all(Some(claim));
        for (name, answer) in answers.split_off(4) {
            assert_eq!(answer, OPEN, "{name}");
        }
        for (name, answer) in &answers {
            assert!([OPEN, SHUT].contains(&answer.as_str()), "{name}: {answer}");
        }
        (0..)
            .zip(answers)
            .filter(|(_, (_, a))| a == OPEN)
            .map(|(minor, _)| minor)
            .collect()
    }
}

#[test]
fn a_member_opens_what_was_granted_and_nothing_else() {
    let Some(f) = Fixture::new() else { return };
    let claim = f.tree.claim(1000, 1);
    let mut filters = Filters::default();
    assert_eq!(f.visible(&claim), [0, 1, 2, 3], "no filter yet");
    filters.set(&claim, &f.rules(&[1])).unwrap();
    assert_eq!(f.visible(&claim), [1]);
    assert!(filters.is_set(&claim, &f.rules(&[1])).unwrap());
    assert!(!filters.is_set(&claim, &f.rules(&[2])).unwrap());

    // Grants change while members live; the filter is replaced, not stacked.
    filters.set(&claim, &f.rules(&[0, 3])).unwrap();
    assert_eq!(f.visible(&claim), [0, 3]);
    filters.set(&claim, &f.rules(&[0, 3])).unwrap();
    filters.set(&claim, &f.rules(&[])).unwrap();
    assert_eq!(f.visible(&claim), [0_u32; 0]);
    assert_eq!(filters.attached(&claim).unwrap().len(), 1);

    filters.clear(&claim).unwrap();
    assert_eq!(f.visible(&claim), [0, 1, 2, 3]);
    assert!(filters.attached(&claim).unwrap().is_empty());
}

#[test]
fn a_guard_says_which_process_it_kept_from_which_gpu() {
    let Some(f) = Fixture::new() else { return };
    let claim = f.tree.claim(1000, 1);
    let mut guard = Guard::of(claim.dir());
    let Some(mut refusals) = guard.refusals(&f.majors) else {
        println!("skipped: this kernel does not say whom a filter refuses");
        return;
    };
    let rules = GuardRules {
        majors: f.majors.clone(),
        open: [1].into(),
        exempt: [].into(),
    };
    guard.set(claim.dir(), &rules).unwrap();
    // Often enough for the ring to wrap around.
    for _ in 0..60 {
        let refused: Vec<_> = (0..4).filter(|n| *n != 1).map(Some).collect();
        assert_eq!(f.visible(&claim), [1]);
        let mut told = Vec::new();
        while told.len() < refused.len() {
            told.extend(refusals.wait().unwrap());
        }
        let minors: Vec<_> = told.iter().map(|r| r.minor).collect();
        assert_eq!(minors, refused);
        assert!(
            told.iter()
                .all(|r| r.pid > 0 && r.uid == 0 && r.name == "cat"),
            "{told:?}"
        );
    }
    guard.lift_except(&[].into()).unwrap();
}

#[test]
fn claims_with_equal_rules_share_a_program() {
    let Some(f) = Fixture::new() else { return };
    let (a, b, c) = (f.tree.claim(1, 1), f.tree.claim(2, 2), f.tree.claim(3, 3));
    let mut filters = Filters::default();
    filters.set_on_new(&a, &f.rules(&[2])).unwrap();
    filters.set_on_new(&b, &f.rules(&[2])).unwrap();
    filters.set_on_new(&c, &f.rules(&[3])).unwrap();
    let one = |claim| filters.attached(claim).unwrap().remove(0);
    assert_eq!(one(&a), one(&b));
    assert_ne!(one(&a).id, one(&c).id);
    assert_ne!(one(&a).tag, one(&c).tag);
    assert_eq!((f.visible(&b), f.visible(&c)), (vec![2], vec![3]));
}

#[test]
fn a_node_that_a_member_makes_itself_opens_nothing() {
    let Some(f) = Fixture::new() else { return };
    let claim = f.tree.claim(1000, 1);
    Filters::default().set(&claim, &f.rules(&[1])).unwrap();
    let own = f.dir.path().join("own");
    let own = own.display();
    let script = format!(
        "mknod {own} c {} 0 && echo made; : < {own}",
        f.majors.nvidia
    );
    let mut shell = Waiting::new(&script);
    claim.move_process(shell.pid(), None).unwrap();
    let (status, output) = shell.finish();
    assert!(!status.success(), "{output}");
    assert!(output.contains("made") && output.contains(SHUT), "{output}");
}

/// Not a test of its own: acts as the service in the test below.
#[test]
fn service_that_is_killed() {
    let Some(tree) = std::env::var_os(SERVICE_TREE) else {
        return;
    };
    let (name, nvidia) = tree.to_str().unwrap().rsplit_once(' ').unwrap();
    let tree = OwnTree::open(&Parent::Top, name).unwrap();
    let claim = tree
        .create(ClaimPlace {
            uid: 1000,
            claim: 9,
        })
        .unwrap();
    let majors = Majors {
        nvidia: nvidia.parse().unwrap(),
        uvm: None,
        caps: None,
    };
    Filters::default()
        .set(&claim, &DeviceRules::gpus(majors, [2]))
        .unwrap();
    println!("\nattached");
    loop {
        std::thread::park();
    }
}

#[test]
fn the_filter_outlives_the_service() {
    let Some(mut f) = Fixture::new() else { return };
    f.majors.uvm = None;
    f.majors.caps = None;
    let name = f
        .tree
        .0
        .dir()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let mut service = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "service_that_is_killed", "--nocapture"])
        .env(SERVICE_TREE, format!("{name} {}", f.majors.nvidia))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let attached = lines.map_while(Result::ok).any(|line| line == "attached");
    service.kill().unwrap();
    service.wait().unwrap();
    assert!(attached, "the service attached its filter");

    let claims = f.tree.0.claims().unwrap();
    assert_eq!(claims.len(), 1);
    assert_eq!(f.visible(&claims[0]), [2]);

    // A restarted service reads the filters back and can change them.
    let mut filters = Filters::default();
    assert!(filters.is_set(&claims[0], &f.rules(&[2])).unwrap());
    filters.set(&claims[0], &f.rules(&[3])).unwrap();
    assert_eq!(filters.attached(&claims[0]).unwrap().len(), 1);
    assert_eq!(f.visible(&claims[0]), [3]);
}

#[test]
fn a_filter_on_the_parent_is_asked_too() {
    let Some(f) = Fixture::new() else { return };
    let claim = f.tree.claim(1000, 1);
    let mut filters = Filters::default();
    filters.set(&claim, &f.rules(&[0, 1])).unwrap();
    let below = OwnTree::open(
        &Parent::At(Path::new("/").join(claim.dir().strip_prefix(top()).unwrap())),
        "inner",
    )
    .unwrap();
    let inner = below
        .create(ClaimPlace {
            uid: 1000,
            claim: 2,
        })
        .unwrap();
    filters.set(&inner, &f.rules(&[1, 2])).unwrap();
    assert_eq!(f.visible(&inner), [1]);
    below.remove(&inner).unwrap();
    assert!(below.remove_if_empty().unwrap());
}

fn top() -> std::path::PathBuf {
    gshare_enforcer::cgroup::Mount::find().unwrap().point
}

#[test]
fn an_unprivileged_service_is_told_what_is_missing() {
    const UNPRIVILEGED: &str = "GSHARE_TEST_UNPRIVILEGED";
    if std::env::var_os(UNPRIVILEGED).is_some() || !nix::unistd::geteuid().is_root() {
        let majors = Majors::of_this_machine().unwrap();
        let error = Filters::default()
            .preload(&DeviceRules::gpus(majors, [0]))
            .unwrap_err();
        assert!(matches!(error, DeviceError::NotPermitted { .. }), "{error}");
        let error = OwnTree::open(&Parent::Top, "gshare-test-unprivileged").unwrap_err();
        assert!(
            error.to_string().contains("hint: run gshared as root"),
            "{error}"
        );
        return;
    }
    // As root: again as the user `nobody`, from a copy that this user can read.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    for path in [dir.path(), &copy] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["--exact", "an_unprivileged_service_is_told_what_is_missing"])
        .env(UNPRIVILEGED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}
