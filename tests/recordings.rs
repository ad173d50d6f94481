//! The scheduler of the service, recorded while real processes are served: from what it was told alone, and without the
//! service, the same machine must come to every decision that was recorded.

use std::process::Command;

/// Whole-program tests in which there are countdowns, an offload that fails, a move that is refused, claims that end on
/// their way, services that are started again, time limits and wishes of people.
const SCENES: [&str; 10] = [
    "levers::keep_puts_off_what_was_announced_once",
    "levers::people_are_told_on_their_terminal_before_anything_is_taken",
    "levers::a_requeued_command_is_asked_to_end_and_starts_anew_when_there_is_room",
    "levers::an_idle_claim_is_detached_for_who_waits_and_its_next_call_brings_it_back",
    "detach::a_moved_claim_has_its_memory_on_the_other_gpu_and_sees_no_difference",
    "detach::what_cannot_be_detached_says_so_before_anybody_asks",
    "detach_faults::whatever_the_driver_refuses_leaves_a_claim_whole_on_one_side",
    "detach_faults::a_process_that_ends_while_its_memory_is_on_the_way_frees_its_place",
    "restart::members_run_on_under_their_cap_while_no_service_runs",
    "queue::a_waiting_claim_says_why_and_when_and_its_log_tells_the_rest",
];

#[test]
fn ten_scenes_with_real_processes_are_decided_again_without_the_service() {
    let dir = tempfile::tempdir().expect("a directory");
    let tests = std::env::current_exe().expect("this program");
    let mut recorded = 0;
    for scene in SCENES {
        let before = std::fs::read_dir(dir.path()).expect("it is there").count();
        let output = Command::new(&tests)
            .args(["--exact", scene])
            .env("GSHARE_RECORD", dir.path())
            .output()
            .expect("starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{scene}: {text}"
        );
        let after = std::fs::read_dir(dir.path()).expect("it is there").count();
        assert!(after > before, "{scene} left no recording");
        recorded += after - before;
    }
    let mut decided = 0;
    for file in std::fs::read_dir(dir.path()).expect("it is there") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        assert!(text.starts_with("same: "), "{text}");
        let count = text.split(' ').nth(3).and_then(|n| n.parse().ok());
        decided += count.unwrap_or(0u32);
    }
    assert!(
        recorded >= 10 && decided >= 40,
        "{recorded} recordings, {decided} decisions"
    );
}
