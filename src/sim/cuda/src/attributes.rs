//! Device attributes, by the numbers of `CUdevice_attribute`.

use gshare_sim_board::Model;

/// The value of a device attribute; `None` for unknown numbers.
pub(crate) fn value(m: &Model, pci_bus: u32, attribute: u32) -> Option<i32> {
    let (major, minor) = m.compute_capability;
    let hopper = major >= 9;
    let data_centre = m.ecc;
    let v: u32 = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => 0x7fff_ffff,
        12 => m.regs_per_sm,
        13 => m.sm_clock_mhz * 1000,
        14 => 512,
        15 => 1,
        16 => m.sms,
        17 => 0,
        18 => 0,
        19 => 1,
        20 => 0,
        21 => 131_072,
        22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        27 | 28 => 32_768,
        29 => 2048,
        30 => 512,
        31 => 1,
        32 => u32::from(m.ecc),
        33 => pci_bus,
        34 | 35 => 0,
        36 => m.mem_clock_mhz * 1000,
        37 => m.bus_bits,
        38 => m.l2_bytes,
        39 => m.threads_per_sm,
        40 => m.copy_engines,
        41 => 1,
        42 => 32_768,
        43 => 2048,
        44 => 1,
        45 | 46 => 32_768,
        47 | 48 => 8192,
        49 => 32_768,
        50 => 0,
        51 => 32,
        52 | 53 => 32_768,
        54 => 2046,
        55 => 32_768,
        56 => 131_072,
        57 => 65_536,
        58..=60 => 16_384,
        61 => 32_768,
        62 => 2048,
        63 | 64 => 32_768,
        65 => 2048,
        66 | 67 => 32_768,
        68 => 2046,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 | 74 => 32_768,
        75 => major,
        76 => minor,
        77 => 32_768,
        78..=80 => 1,
        81 => m.shared_per_sm,
        82 => m.regs_per_sm,
        83 => 1,
        84 => 0,
        85 => pci_bus,
        86 => 0,
        87 => m.fp64_ratio,
        88 => 0,
        89..=91 => 1,
        // The first versions of memory operations in streams, which real drivers have switched off.
        92..=94 => 0,
        // Cooperative launches: on one device only.
        95 => 1,
        96 => 0,
        97 => m.shared_optin,
        98 => 0,
        99 => 1,
        100 | 101 => 0,
        102 => 1,
        // Shareable handles: file descriptors only.
        103 => 1,
        104 | 105 => 0,
        106 => m.blocks_per_sm,
        107 => 0,
        108 => m.l2_bytes / 8 * 5,
        109 => 134_213_632,
        110 => 0,
        111 => 1024,
        112 => 0,
        113 => 1,
        114 => 0,
        115 => 1,
        116 => u32::from(data_centre),
        117 => 1,
        118 => 100,
        119 => 0,
        120 => u32::from(hopper),
        121 | 124 => 0,
        // Waits and writes of 64 bits, and the fourth condition.
        122 | 123 => 1,
        125 => 1,
        126 => {
            if hopper {
                4
            } else {
                1
            }
        }
        127..=129 => 0,
        130 => 0,
        // No NUMA node of its own.
        131 => return Some(-1),
        132 => u32::from(hopper),
        133..=138 => 0,
        139 => m.pci_device_id,
        140 => m.pci_subsystem_id,
        141..=148 => 0,
        149 => 1,
        150..=156 => 0,
        157 => m.sms,
        158 | 161 => 0,
        _ => return None,
    };
    Some(v.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_ask_first() {
        let h100 = Model::by_slug("h100").expect("model");
        for (attribute, expect) in [
            (1, Some(1024)),
            (2, Some(1024)),
            (3, Some(1024)),
            (4, Some(64)),
            (10, Some(32)),
            (16, Some(132)),
            (75, Some(9)),
            (76, Some(0)),
            (131, Some(-1)),
            (0, None),
            (10_000, None),
        ] {
            assert_eq!(value(h100, 1, attribute), expect, "attribute {attribute}");
        }
    }
}
