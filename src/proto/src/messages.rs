//! Messages that more than one part of gshare says, so that it says them in one way, each with a name and an example. A message
//! that one place alone says stands there, beside the facts that it needs. The catalogue of all messages is a page that
//! `tests/tidy.rs` writes: `target/tmp/texts.md`. That test checks the words, and fails where a sentence stands in two files.

use std::fmt::Display;

/// One message, as the page shows it.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// The name of its function.
    pub code: &'static str,
    /// Its text, with the names of the values in it.
    pub text: &'static str,
    /// The text with values as users see them.
    pub example: fn() -> String,
}

macro_rules! catalogue {
    ($($name:ident($($value:ident = $example:literal),*) $text:literal)*) => {
        $(
            #[doc = concat!("\"", $text, "\"")]
            #[must_use]
            pub fn $name($($value: impl Display),*) -> String {
                format!($text)
            }
        )*

        /// All of them.
        pub const CATALOGUE: &[Message] = &[$(Message {
            code: stringify!($name),
            text: $text,
            example: || $name($($example),*),
        }),*];
    };
}

catalogue! {
    // The caller, and what it names.
    unknown_peer() "the kernel does not report which process sent the request"
    no_claim(word = "c48") "there is no claim `{word}`"
    claims_are_listed() "gshare log lists the claims, with the last that ended"
    claim_your_own() "claim your own: gshare claim -g 0.25 -- COMMAND"
    no_gpu_named() "no GPU is named"
    no_gpu(word = "7") "this machine has no GPU {word}"
    several_gpus(word = "GPU-3f") "several GPU UUIDs begin with `{word}`"
    no_user(user = "ada") "there is no user `{user}`"
    only_owner(what = "c48", owner = "ada", verb = "release") "{what} belongs to {owner}; only {owner} and root can {verb} it"
    only_owner_runs(what = "c48", owner = "ada", programs = "containers") "{what} belongs to {owner}; only {owner} can run {programs} in it"
    no_service() "no gshare service runs on this machine"
    no_answer(path = "/run/gshare/gshared.sock") "no gshare service answers at {path}"
    no_service_hint() "sudo gshare setup, or gshare daemon --user"
    strange_answer() "this version of gshare does not understand the service's answer"
    try_demo() "to try gshare without a GPU: gshare demo"

    // Claims that wait.
    start_unknown() "start time unknown: gshare cannot tell when room will be free"
    starts_now(arguments = "-g 0.25") "with {arguments} it would start now"
    refused(id = "c3", what = "768 MiB", limit = "11.6 GiB", free = "5.8 GiB", gpu = 0) "{id} was refused {what} at its limit of {limit}; {free} of GPU {gpu} is free"
    not_offloadable(id = "c48", why = "it uses managed memory") "{id} cannot be offloaded: {why}"
    on_its_gpu(id = "c48") "{id} is already on its GPU"
    uses_more() "uses more than it has"
    none_waits_here() "no claim waits; the jobs of Slurm: squeue"
    off_holds_nothing() "gshare is off: nothing limits or protects this claim"
    too_late(id = "c48") "too late: what was announced for {id} has begun"

    // What could not be done.
    not_granted(id = "c48", cause = "cannot write the journal: No space left on device") "{id} could not be granted: {cause}"
    nothing_changed(cause = "No space left on device") "nothing was changed: {cause}"
    disk_room(place = "/var/lib/gshare") "is there room on the disk of {place}?"
    state_disk_room() "is there room on the disk of the state directory (gshare config path)?"
    containers_need_cgroups() "without cgroups gshare cannot tell which claim a container belongs to"
    no_libcuda(cause = "no libcuda.so.1 in /usr/lib") "no libcuda was found: {cause}"
    not_a_socket(path = "/run/gshare/gshared.sock") "{path} exists but is not a socket"
    needs_driver(release = 580) "needs driver release {release} or later"
    cannot_checkpoint(release = "550") "driver release {release} cannot checkpoint most programs, so gshare offloads no claim by itself; to try it: gshare offload"
    no_command_starts(cause = "the driver is being replaced") "no command can be started: {cause}"

    // GPUs.
    one_kernel(claim = "c3", span = "40s", gpu = 0) "{claim} has run one kernel for {span}; GPU {gpu} cannot be shared meanwhile"
    gpu_is_held(gpu = 0, holders = "c3 of ada, c5 of bob") "GPU {gpu} is held by {holders}"
    gpu_takes_claims(gpu = 0) "GPU {gpu} takes claims again"
    gpu_is_lost() "the driver has lost the GPU"
    take_back(gpu = 0) "gshare admin release {gpu} --take"
    remapping_failed() "remapping of a memory row failed"
    remapping_waits() "remapping of a memory row waits for a reset"
    gpu_mode(gpu = 0, mode = "mps") "GPU {gpu} is now in mode {mode}"
    driver_is_silent(pid = 4242) "the driver does not answer for process {pid} while another process of the claim is paused"
    needs_mps(cause = "nvidia-cuda-mps-control is not installed") "MPS is needed to run claims side by side, but is missing: {cause}"

    // How sure a row of doctor is.
    stand_in_nodes() "tested only with stand-in device nodes"
    only_groups(groups = "gpu-admins") "root and the groups {groups}"
    period_ends_first() "the requested period ends before it begins"
    asking_for_history() "asking the service what it recorded"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::CATALOGUE;

    #[test]
    fn the_page_of_all_messages() {
        let mut texts = BTreeSet::new();
        for message in CATALOGUE {
            let example = (message.example)();
            println!("{:<24} {example}", message.code);
            assert!(texts.insert(message.text), "said twice: {}", message.text);
            assert!(
                !example.contains(['{', '}']),
                "a value is missing: {example}"
            );
        }
    }
}
