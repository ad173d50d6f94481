//! Claims' cgroups against the real kernel: membership, freezing, killing, removing, watching.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use gshare_enforcer::cgroup::{
    CgroupError, CgroupEvents, ClaimCgroup, ClaimPlace, ClaimTree, OwnTree, Parent, TreeWatch,
};
use gshare_enforcer::proc;
use support::{LONG, TestTree, Waiting, until, wait_readable};

#[test]
fn members_are_known_by_the_kernel() {
    let Some(tree) = TestTree::new() else { return };
    let claim = tree.claim(1000, 7);
    let mut shell = Waiting::new("sleep 1000 & echo started; wait");
    assert_eq!(tree.0.claim_of_pid(shell.pid()), None);
    assert!(!claim.events().unwrap().populated);

    claim
        .move_process(shell.pid(), Some(&shell.pidfd()))
        .unwrap();
    assert_eq!(tree.0.claim_of_pid(shell.pid()), Some(claim.place()));
    assert!(claim.events().unwrap().populated);

    shell.go();
    until("the child is a member too", || {
        claim.procs().unwrap().len() == 2
    });
    let mut pids = claim.procs().unwrap();
    pids.retain(|pid| *pid != shell.pid());
    assert_eq!(tree.0.claim_of_pid(pids[0]), Some(claim.place()));
    let parents: Vec<i32> = proc::ancestors(pids[0]).iter().map(|s| s.pid).collect();
    assert!(parents.contains(&shell.pid()), "{parents:?}");

    // A second tree object, as after a restart, finds the same claims.
    let found = tree.0.claims().unwrap();
    let places: Vec<ClaimPlace> = found.iter().map(ClaimCgroup::place).collect();
    assert_eq!(places, [claim.place()]);
    assert_eq!(found[0].id(), claim.id());
    assert_eq!(found[0].procs().unwrap().len(), 2);
}

#[test]
fn members_of_nested_cgroups_count() {
    let Some(tree) = TestTree::new() else { return };
    let claim = tree.claim(1000, 1);
    let inner = claim.dir().join("own/deeper");
    std::fs::create_dir_all(&inner).unwrap();
    let shell = Waiting::new("true");
    std::fs::write(inner.join("cgroup.procs"), shell.pid().to_string()).unwrap();
    assert_eq!(claim.procs().unwrap(), [shell.pid()]);
    assert_eq!(tree.0.claim_of_pid(shell.pid()), Some(claim.place()));
    assert!(claim.events().unwrap().populated);
    // Moving it again succeeds even from a cgroup below.
    claim.move_process(shell.pid(), None).unwrap();

    let error = tree.0.remove(&claim).unwrap_err();
    assert!(
        matches!(error, CgroupError::Busy { members: 1, .. }),
        "{error}"
    );
    claim.kill().unwrap();
    claim.wait_empty(LONG).unwrap();
    tree.0.remove(&claim).unwrap();
    assert!(!claim.dir().exists());
    assert!(claim.procs().unwrap_err().is_gone());
}

#[test]
fn a_claim_freezes_thaws_and_dies_as_a_whole() {
    let Some(tree) = TestTree::new() else { return };
    let claim = tree.claim(1000, 1);
    // It keeps forking, and cgroup.kill must be faster.
    let mut shell = Waiting::new("while :; do sleep 0.01 & wait; done");
    claim.move_process(shell.pid(), None).unwrap();
    shell.go();

    let mut watch = claim.watch().unwrap();
    for frozen in [true, false, true] {
        claim.ask_frozen(frozen).unwrap();
        let stands = |e: CgroupEvents| e.frozen == Some(frozen);
        watch.wait(LONG, "as asked", stands).unwrap();
    }
    claim.kill().unwrap();
    claim.wait_empty(LONG).unwrap();
    assert!(shell.pidfd().has_exited());
    tree.0.remove(&claim).unwrap();
    assert!(
        !claim.dir().parent().unwrap().exists(),
        "the user's cgroup is gone too"
    );
}

#[test]
fn a_process_that_ended_is_not_moved() {
    let Some(tree) = TestTree::new() else { return };
    let claim = tree.claim(1000, 1);
    let mut shell = Waiting::new("true");
    let (pid, pidfd) = (shell.pid(), shell.pidfd());
    shell.go();
    assert!(wait_readable(&pidfd));
    let zombie = claim.move_process(pid, Some(&pidfd)).unwrap_err();
    assert!(matches!(zombie, CgroupError::Vanished { .. }), "{zombie}");
    shell.0.wait().unwrap();
    let gone = claim.move_process(pid, None).unwrap_err();
    assert!(matches!(gone, CgroupError::Vanished { .. }), "{gone}");
    assert!(gone.to_string().contains(&pid.to_string()), "{gone}");
}

#[test]
fn the_watch_tells_which_claim_emptied() {
    let Some(tree) = TestTree::new() else { return };
    let (a, b) = (tree.claim(1000, 1), tree.claim(1001, 2));
    let mut watch = TreeWatch::new().unwrap();
    watch.add(&a).unwrap();
    watch.add(&b).unwrap();
    assert!(watch.read().unwrap().is_empty());

    let mut shells = [Waiting::new("true"), Waiting::new("true")];
    a.move_process(shells[0].pid(), None).unwrap();
    b.move_process(shells[1].pid(), None).unwrap();
    let mut seen = Vec::new();
    until("both are populated", || {
        seen.extend(watch.read().unwrap());
        seen.contains(&a.place()) && seen.contains(&b.place())
    });

    shells[1].finish();
    assert!(wait_readable(&watch));
    assert_eq!(watch.read().unwrap(), [b.place()]);
    assert!(!b.events().unwrap().populated);
    assert!(a.events().unwrap().populated);

    let mut own = a.watch().unwrap();
    assert!(own.read().unwrap().populated);
    watch.remove(b.place());
    watch.remove(b.place());
    tree.0.remove(&b).unwrap();
    shells[0].finish();
    until("the first emptied", || {
        watch.read().unwrap().contains(&a.place())
    });
    assert!(!own.read().unwrap().populated);
}

#[test]
fn another_user_can_neither_leave_nor_join() {
    let Some(tree) = TestTree::new() else { return };
    let (a, b) = (tree.claim(1000, 1), tree.claim(1001, 2));
    let script = format!(
        "for to in {} {}; do \
           setpriv --reuid 1000 --regid 1000 --clear-groups \
             sh -c 'echo $$ > '$to'/cgroup.procs && echo LEFT'; \
         done",
        b.dir().display(),
        tree.0.dir().parent().unwrap().display(),
    );
    let mut shell = Waiting::new(&script);
    a.move_process(shell.pid(), None).unwrap();
    let (_, output) = shell.finish();
    assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
    assert!(!output.contains("LEFT"), "{output}");
    assert!(b.procs().unwrap().is_empty());
}

#[test]
fn warming_up_moves_nobody() {
    let Some(tree) = TestTree::new() else { return };
    let own = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = own();
    tree.0.warm_up().unwrap();
    assert_eq!(own(), before);
}

/// Set for the copy of this program that acts as an unprivileged service in a delegated cgroup.
const DELEGATED: &str = "GSHARE_TEST_DELEGATED";

/// Not a test of its own: the unprivileged part of the test below.
#[test]
fn unprivileged_service() {
    if std::env::var_os(DELEGATED).is_none() {
        return;
    }
    assert!(!nix::unistd::geteuid().is_root());
    let tree = OwnTree::open(&Parent::Own, "gshare").unwrap();
    tree.warm_up().unwrap();
    let claim = tree
        .create(ClaimPlace {
            uid: 65534,
            claim: 1,
        })
        .unwrap();
    let shell = Waiting::new("true");
    claim
        .move_process(shell.pid(), Some(&shell.pidfd()))
        .unwrap();
    assert_eq!(tree.claim_of_pid(shell.pid()), Some(claim.place()));
    claim.ask_frozen(true).unwrap();
    claim.kill().unwrap();
    claim.wait_empty(LONG).unwrap();
    tree.remove(&claim).unwrap();
    assert!(tree.remove_if_empty().unwrap());
}

#[test]
fn a_delegated_cgroup_is_enough_for_an_unprivileged_service() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let Some(tree) = TestTree::new() else { return };
    // The claim's cgroup acts as the delegated unit.
    let unit = tree.claim(65534, 1);
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    for path in [dir.path(), &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let service = |delegate: bool| {
        if delegate {
            for file in [
                "",
                "cgroup.procs",
                "cgroup.subtree_control",
                "cgroup.threads",
            ] {
                chown(unit.dir().join(file), Some(65534), Some(65534)).unwrap();
            }
        }
        let mut shell = Waiting::new(&format!(
            "{DELEGATED}=1 exec setpriv --reuid 65534 --regid 65534 --clear-groups \
             {} --exact unprivileged_service --nocapture",
            copy.display()
        ));
        unit.move_process(shell.pid(), None).unwrap();
        let (status, output) = shell.finish();
        (status.success(), output)
    };
    let (worked, output) = service(false);
    assert!(!worked && output.contains("NotDelegated"), "{output}");
    let (worked, output) = service(true);
    assert!(worked, "{output}");
}

#[test]
fn without_delegation_the_error_says_so() {
    let Some(_tree) = TestTree::new() else { return };
    let missing = Parent::At("/no-such-cgroup".into());
    let error = OwnTree::open(&missing, "gshare").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CgroupError::NotDelegated { .. }), "{text}");
    assert!(
        text.contains("no-such-cgroup") && text.contains("hint: "),
        "{text}"
    );
}
