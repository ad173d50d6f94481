//! A member's view of GPUs through CUDA and NVML: the claim's share and nothing else.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use gshare_sim_board::Board;
use object::{Object, ObjectSymbol};
use support::{Client, Desk, GIB, MIB};

const INVALID_DEVICE: i32 = 101;
const NVML_NOT_FOUND: i32 = 6;
const NVML_INSUFFICIENT_SIZE: i32 = 7;

/// Three simulated GPUs; the claim has the third and the first, in this order.
struct Rig {
    desk: Desk,
    board: Board,
    overhead: u64,
}

const CAPS: [u64; 2] = [8 * GIB, 6 * GIB];

impl Rig {
    fn new() -> Self {
        let (desk, board, overhead) =
            Desk::simulated(&["rtx4090"; 3], "", &[2, 0], |nth, _| CAPS[nth]);
        Self {
            desk,
            board,
            overhead,
        }
    }

    fn uuid(&self, gpu: usize) -> String {
        self.board.snapshot().gpus[gpu].uuid.clone()
    }

    /// Another user's process, on the driver itself.
    fn stranger(&self) -> Client {
        let lib = self.desk.directory.path().join("sim/lib");
        Client::start(&lib, |_| {})
    }
}

#[test]
fn cuda_shows_the_claims_gpus_in_the_drivers_order() {
    let rig = Rig::new();
    let mut client = rig.desk.client();
    client.must("init");
    assert_eq!(client.must("devices"), 2);
    assert_eq!((client.must("device 0"), client.must("device 1")), (0, 2));
    assert_eq!(client.ask("device 2").0, INVALID_DEVICE);
    assert_eq!(client.must("device_bytes 2"), CAPS[0]);
    assert_eq!(client.must("device_bytes 0"), CAPS[1]);
    client.must("retain 2");
    assert_eq!(client.must("total_bytes"), CAPS[0]);
    assert_eq!(client.must("free_bytes"), CAPS[0] - rig.overhead);
    // If a variable (as here) or a filter hides the others, a device's number is its place; a program keeps its order.
    for order in [[0, 2], [2, 0]] {
        let order = order.map(|gpu| rig.uuid(gpu)).join(",");
        let mut client = rig.desk.client_with(&[("CUDA_VISIBLE_DEVICES", &order)]);
        client.must("init");
        assert_eq!((client.must("device 0"), client.must("device 1")), (0, 1));
        let first = CAPS[usize::from(order.starts_with(&rig.uuid(0)))];
        assert_eq!(client.must("device_bytes 0"), first);
    }
}

#[test]
fn a_program_that_asks_for_the_machines_numbers_gets_the_claims_gpus_or_reads_why_not() {
    let rig = Rig::new();
    for (held, number) in rig.desk.held.lock().unwrap().iter_mut().zip([5, 7]) {
        held.limits.set_gpu_index(Some(number));
    }
    // A habit: the machine's GPU number, here GPU 7 of the claim's GPUs 5 and 7.
    let mut client = rig.desk.client_with(&[("CUDA_VISIBLE_DEVICES", "7")]);
    client.must("init");
    assert_eq!(client.must("devices"), 1);
    assert_eq!(client.must("device_bytes 0"), CAPS[1]);
    let why = "names a GPU that this claim does not have. Inside a claim, GPUs are numbered from 0. Remove \
        CUDA_VISIBLE_DEVICES";
    for (list, told) in [
        ("6", true),
        (&*rig.uuid(1), true),
        ("-1", false),
        ("", false),
    ] {
        let mut client = rig.desk.client_with(&[("CUDA_VISIBLE_DEVICES", list)]);
        client.ask("init");
        let errors = client.end();
        assert_eq!(errors.contains(why), told, "{list:?}: {errors}");
    }
}

#[test]
fn a_stranger_sees_everything() {
    let rig = Rig::new();
    rig.desk.refuse_all();
    let mut client = rig.desk.client();
    client.must("init");
    assert_eq!(client.must("devices"), 3);
    assert_eq!(client.must("device 2"), 2);
    client.must("nvml_init");
    assert_eq!(client.must("nvml_count"), 3);
    assert!(client.must("nvml_total 0") > 20 * GIB);
}

#[test]
fn nvml_shows_the_cap_the_charge_and_the_claims_processes() {
    let rig = Rig::new();
    let mut stranger = rig.stranger();
    stranger.begin(2);
    stranger.must(&format!("alloc {GIB}"));
    let mut other = rig.desk.client();
    other.begin(2);
    other.must(&format!("alloc {}", 300 * MIB));
    let mut client = rig.desk.client();
    client.begin(2);
    client.must(&format!("alloc {}", 500 * MIB));
    client.must("nvml_init");
    assert_eq!(client.must("nvml_count"), 2);
    assert_eq!(client.must("nvml_index 1"), 1);
    assert_eq!(client.must("nvml_total 0"), CAPS[0]);
    assert_eq!(client.must("nvml_total 1"), CAPS[1]);
    assert_eq!(client.must("nvml_used 0"), 2 * rig.overhead + 800 * MIB);
    assert_eq!(client.must("nvml_used 1"), 0);
    assert_eq!(client.must("nvml_processes 0 16"), 2);
    assert_eq!(
        client.ask("nvml_processes 0 1"),
        (NVML_INSUFFICIENT_SIZE, 2)
    );
    assert_eq!(client.must("nvml_processes 1 16"), 0);
    let of = |client: &mut Client, pid: u32| client.must(&format!("nvml_process 0 {pid}"));
    assert_eq!(of(&mut client, other.pid()), rig.overhead + 300 * MIB);
    let own = client.pid();
    assert_eq!(of(&mut client, own), rig.overhead + 500 * MIB);
    assert_eq!(of(&mut client, stranger.pid()), 0, "not the claim's");
    // GPUs by UUID: the claim's are there, others are not.
    client.must(&format!("nvml_uuid {}", rig.uuid(0)));
    let foreign = format!("nvml_uuid {}", rig.uuid(1));
    assert_eq!(client.ask(&foreign).0, NVML_NOT_FOUND);
    // The cap at this moment.
    rig.desk.held.lock().unwrap()[0]
        .limits
        .set_memory_cap(4 * GIB);
    assert_eq!(client.must("nvml_total 0"), 4 * GIB);
    // NVML's figures have not disturbed the ledger.
    assert_eq!(rig.desk.charged(0), 2 * rig.overhead + 800 * MIB);
    stranger.must("nvml_init");
    assert_eq!(
        stranger.must("nvml_processes 2 16"),
        3,
        "the driver's own figures"
    );
}

#[test]
fn nvml_shows_no_more_free_memory_than_the_gpu_has() {
    let desk = Desk::with_nvml(&[(0, 8 * GIB)]);
    let used = (62 * GIB).to_string();
    let mut client = desk.client_with(&[("FAKE_NVML_USED", &used)]);
    client.must("nvml_init");
    for version in ["", "_v2"] {
        assert_eq!(client.must(&format!("nvml_total{version} 0")), 8 * GIB);
        assert_eq!(client.must(&format!("nvml_free{version} 0")), 2 * GIB);
    }
    assert_eq!(client.must("nvml_used 0"), 0);
}

#[test]
fn nvml_shows_a_member_the_claims_memory_where_the_driver_will_not_say() {
    const NO_PERMISSION: &str = "4";
    let desk = Desk::with_nvml(&[(0, 8 * GIB)]);
    let refusal = [("FAKE_NVML_CODE", NO_PERMISSION), ("FAKE_NVML_MIG", "1")];
    let mut client = desk.client_with(&refusal);
    client.begin(0);
    client.must(&format!("alloc {GIB}"));
    client.must("nvml_init");
    for version in ["", "_v2"] {
        assert_eq!(client.must(&format!("nvml_total{version} 0")), 8 * GIB);
        let free = client.must(&format!("nvml_free{version} 0"));
        assert_eq!(free, 7 * GIB - support::OVERHEAD);
    }
    assert_eq!(client.must("nvml_used 0"), GIB + support::OVERHEAD);
    // Other refusals come from the program itself.
    let mut client = desk.client_with(&[("FAKE_NVML_CODE", "15")]);
    client.must("nvml_init");
    assert_eq!(client.ask("nvml_total 0").0, 15, "the GPU is lost");
    // A process outside claims gets the driver's answers.
    desk.refuse_all();
    let mut client = desk.client_with(&refusal);
    client.must("nvml_init");
    assert_eq!(client.ask("nvml_total 0").0, 4);
}

#[test]
fn the_proxy_defines_its_hooks_and_the_rest_comes_from_the_driver() {
    let file = object::File::parse(gshare_artifacts::NVML_PROXY).unwrap();
    let mut defined: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with("nvml"))
        .collect();
    let mut expected = gshare_nvml_proxy::NAMES.to_vec();
    defined.sort_unstable();
    expected.sort_unstable();
    assert_eq!(defined, expected);
    let rig = Rig::new();
    let mut client = rig.desk.client();
    client.must("nvml_init");
    assert_eq!(client.must("nvml_driver_version"), 1, "not hooked");
}
