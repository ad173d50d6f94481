//! The catalogue of GPU models.
//!
//! Figures are those that NVML and the driver report for the real cards, except two that the simulation chooses:
//! [`Model::context_overhead`] (a real context's size varies with the driver and the loaded program) and
//! [`Model::reserved`] (rounded to the most frequent value).

mod mig;

pub use mig::{MigProfile, instances, profiles};
pub(crate) use mig::{by_index, index_of};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;

/// Granularity of device memory in bytes: physical memory is handed out in steps of 2 MiB.
pub const GRANULARITY: u64 = 2 * MIB;

/// One GPU model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Short name for configuration files, such as `rtx4090`.
    pub slug: &'static str,
    /// Product name as NVML prints it.
    pub name: &'static str,
    /// Total memory in bytes as NVML reports it, including the driver's reserved part.
    pub total: u64,
    /// Bytes that the driver reserves; CUDA sees `total - reserved`.
    pub reserved: u64,
    /// Device memory of one CUDA context in bytes (the simulation's choice).
    pub context_overhead: u64,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// CUDA cores per SM.
    pub cores_per_sm: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Maximum resident threads per SM.
    pub threads_per_sm: u32,
    /// Maximum resident blocks per SM.
    pub blocks_per_sm: u32,
    /// 32-bit registers per SM.
    pub regs_per_sm: u32,
    /// Shared memory per SM in bytes.
    pub shared_per_sm: u32,
    /// Maximum shared memory of a block in bytes, after opting in.
    pub shared_optin: u32,
    /// L2 cache in bytes.
    pub l2_bytes: u32,
    /// Highest SM clock in MHz.
    pub sm_clock_mhz: u32,
    pub mem_clock_mhz: u32,
    /// Width of the memory bus in bits.
    pub bus_bits: u32,
    /// Power limit in milliwatts.
    pub power_limit_mw: u32,
    /// Power in milliwatts when idle.
    pub idle_power_mw: u32,
    /// PCI device id in the upper and vendor id (0x10de) in the lower half.
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    /// PCI Express generation.
    pub pcie_generation: u32,
    /// GPU performance metrics (SM activity and occupancy) in NVML: Hopper and later.
    pub gpm: bool,
    /// Supports MIG.
    pub mig: bool,
    /// ECC memory is on.
    pub ecc: bool,
    /// Ratio of single to double precision throughput.
    pub fp64_ratio: u32,
    /// Asynchronous copy engines.
    pub copy_engines: u32,
}

impl Model {
    /// Total memory in bytes as CUDA reports it.
    #[must_use]
    pub fn cuda_total(&self) -> u64 {
        self.total - self.reserved
    }

    /// Maximum resident warps per SM.
    #[must_use]
    pub fn warps_per_sm(&self) -> u32 {
        self.threads_per_sm / 32
    }

    /// Finds a model by its slug.
    #[must_use]
    pub fn by_slug(slug: &str) -> Option<&'static Model> {
        MODELS.iter().find(|m| m.slug == slug)
    }
}

const AMPERE: Model = Model {
    slug: "rtxa6000",
    name: "NVIDIA RTX A6000",
    total: 49_140 * MIB,
    reserved: 459 * MIB,
    context_overhead: 268 * MIB,
    sms: 84,
    cores_per_sm: 128,
    compute_capability: (8, 6),
    threads_per_sm: 1536,
    blocks_per_sm: 16,
    regs_per_sm: 65_536,
    shared_per_sm: 102_400,
    shared_optin: 101_376,
    l2_bytes: 6 << 20,
    sm_clock_mhz: 2100,
    mem_clock_mhz: 8001,
    bus_bits: 384,
    power_limit_mw: 300_000,
    idle_power_mw: 22_000,
    pci_device_id: 0x2230_10de,
    pci_subsystem_id: 0x1459_10de,
    pcie_generation: 4,
    gpm: false,
    mig: false,
    ecc: false,
    fp64_ratio: 32,
    copy_engines: 2,
};

const HOPPER: Model = Model {
    slug: "h100",
    name: "NVIDIA H100 80GB HBM3",
    total: 81_559 * MIB,
    reserved: 551 * MIB,
    context_overhead: 522 * MIB,
    sms: 132,
    cores_per_sm: 128,
    compute_capability: (9, 0),
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    regs_per_sm: 65_536,
    shared_per_sm: 233_472,
    shared_optin: 232_448,
    l2_bytes: 50 << 20,
    sm_clock_mhz: 1980,
    mem_clock_mhz: 2619,
    bus_bits: 5120,
    power_limit_mw: 700_000,
    idle_power_mw: 70_000,
    pci_device_id: 0x2330_10de,
    pci_subsystem_id: 0x16c1_10de,
    pcie_generation: 5,
    gpm: true,
    mig: true,
    ecc: true,
    fp64_ratio: 2,
    copy_engines: 3,
};

const A100: Model = Model {
    slug: "a100-80gb",
    name: "NVIDIA A100-SXM4-80GB",
    total: 81_920 * MIB,
    reserved: 869 * MIB,
    context_overhead: 418 * MIB,
    sms: 108,
    cores_per_sm: 64,
    compute_capability: (8, 0),
    shared_per_sm: 167_936,
    shared_optin: 166_912,
    l2_bytes: 40 << 20,
    sm_clock_mhz: 1410,
    mem_clock_mhz: 1593,
    power_limit_mw: 400_000,
    idle_power_mw: 60_000,
    pci_device_id: 0x20b2_10de,
    pci_subsystem_id: 0x147f_10de,
    pcie_generation: 4,
    gpm: false,
    ..HOPPER
};

const H200: Model = Model {
    slug: "h200",
    name: "NVIDIA H200",
    total: 143_771 * MIB,
    reserved: 609 * MIB,
    context_overhead: 528 * MIB,
    l2_bytes: 60 << 20,
    mem_clock_mhz: 3201,
    bus_bits: 6144,
    idle_power_mw: 76_000,
    pci_device_id: 0x2335_10de,
    pci_subsystem_id: 0x18be_10de,
    ..HOPPER
};

const RTX_PRO: Model = Model {
    slug: "rtxpro6000",
    name: "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    total: 97_887 * MIB,
    reserved: 638 * MIB,
    context_overhead: 536 * MIB,
    sms: 188,
    compute_capability: (12, 0),
    blocks_per_sm: 24,
    l2_bytes: 128 << 20,
    sm_clock_mhz: 3090,
    mem_clock_mhz: 14_001,
    bus_bits: 512,
    power_limit_mw: 600_000,
    idle_power_mw: 15_000,
    pci_device_id: 0x2bb1_10de,
    pci_subsystem_id: 0x204b_10de,
    pcie_generation: 5,
    gpm: true,
    mig: true,
    fp64_ratio: 64,
    ..AMPERE
};

/// All models, in the order of the index that a board stores.
pub static MODELS: [Model; 6] = [
    Model {
        slug: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        total: 24_564 * MIB,
        reserved: 346 * MIB,
        context_overhead: 388 * MIB,
        sms: 128,
        compute_capability: (8, 9),
        blocks_per_sm: 24,
        l2_bytes: 72 << 20,
        sm_clock_mhz: 2520,
        mem_clock_mhz: 10_501,
        power_limit_mw: 450_000,
        pci_device_id: 0x2684_10de,
        pci_subsystem_id: 0x167c_10de,
        fp64_ratio: 64,
        ..AMPERE
    },
    AMPERE,
    A100,
    HOPPER,
    H200,
    RTX_PRO,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_find_their_models() {
        for (slug, sms, gpm) in [
            ("rtx4090", 128, false),
            ("rtxa6000", 84, false),
            ("a100-80gb", 108, false),
            ("h100", 132, true),
            ("h200", 132, true),
            ("rtxpro6000", 188, true),
        ] {
            let m = Model::by_slug(slug).expect(slug);
            assert_eq!((m.sms, m.gpm), (sms, gpm), "{slug}");
            assert_eq!(m.context_overhead % GRANULARITY, 0, "{slug}");
            assert!(m.cuda_total() < m.total);
        }
        assert!(Model::by_slug("gtx970").is_none());
    }
}
