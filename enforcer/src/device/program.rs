//! Translates the rules of a claim to its filter's program. Pure: no system calls.

use std::collections::BTreeSet;

use super::insn::{Insn, Reg};
use crate::nodes::Majors;

/// Minor of `/dev/nvidiactl`, which every CUDA process needs.
pub(crate) const MINOR_CONTROL: u32 = 255;
/// Minors of the unified-memory driver: `nvidia-uvm` and `nvidia-uvm-tools` (for debuggers).
pub(crate) const MINORS_UVM: [u32; 2] = [0, 1];
/// Type of a character device in the kernel's context (`BPF_DEVCG_DEV_CHAR`).
const CHARACTER: u32 = 2;
/// Only making a node (`BPF_DEVCG_ACC_MKNOD`).
pub(crate) const MAKE: u32 = 1;

/// Devices that the members of a claim may open. Other vendors' devices are unaffected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRules {
    /// The device numbers of this machine.
    pub majors: Majors,
    /// Minors N of the granted `/dev/nvidia<N>`.
    pub minors: BTreeSet<u32>,
    /// Minors N of the granted `/dev/nvidia-caps/nvidia-cap<N>` (MIG instances).
    pub caps: BTreeSet<u32>,
}

impl DeviceRules {
    /// Rules for the GPUs with these minors, without MIG capabilities.
    #[must_use]
    pub fn gpus(majors: Majors, minors: impl IntoIterator<Item = u32>) -> Self {
        Self {
            majors,
            minors: minors.into_iter().collect(),
            caps: BTreeSet::new(),
        }
    }

    /// Allowed minors of each major; all others of these majors are refused.
    fn table(&self) -> Vec<(u32, Vec<u32>)> {
        // 254 (nvidia-modeset) and 255 share the major with the GPUs: a grant must not name them.
        let gpus = self.minors.iter().copied().filter(|m| *m < 254);
        let mut table = vec![(
            self.majors.nvidia,
            std::iter::once(MINOR_CONTROL).chain(gpus).collect(),
        )];
        table.extend(self.majors.uvm.map(|major| (major, MINORS_UVM.to_vec())));
        let caps = self.caps.iter().copied().collect();
        table.extend(self.majors.caps.map(|major| (major, caps)));
        table
    }
}

/// The program: returns 1 to allow, 0 to refuse.
///
/// It allows block devices, all majors that are not NVIDIA's, and making nodes: that opens nothing, and a container
/// program makes nodes of GPUs that the claim may get later. For each of NVIDIA's majors a list of comparisons ends in
/// a refusal.
#[must_use]
pub fn program(rules: &DeviceRules) -> Vec<Insn> {
    let allow = || [Insn::set(Reg::R0, 1), Insn::exit()];
    let deny = || [Insn::set(Reg::R0, 0), Insn::exit()];
    let mut out = vec![
        Insn::load_word(Reg::R2, Reg::R1, 0),
        Insn::load_word(Reg::R3, Reg::R1, 4),
        Insn::load_word(Reg::R4, Reg::R1, 8),
        // The context's first word is access << 16 | type.
        Insn::skip_if_equal(Reg::R2, MAKE << 16 | CHARACTER, 2),
        Insn::and(Reg::R2, 0xffff),
        Insn::skip_if_equal(Reg::R2, CHARACTER, 2),
    ];
    out.extend(allow());
    for (major, minors) in rules.table() {
        // The kernel rejects programs with unreachable parts.
        if minors.is_empty() {
            out.push(Insn::skip_unless_equal(Reg::R3, major, 2));
            out.extend(deny());
            continue;
        }
        let comparisons = distance(minors.len());
        out.push(Insn::skip_unless_equal(Reg::R3, major, comparisons + 4));
        for (done, minor) in (0..).zip(minors) {
            // Skips the remaining comparisons and the refusal, to this block's own allowance.
            out.push(Insn::skip_if_equal(Reg::R4, minor, comparisons - done + 1));
        }
        out.extend(deny());
        out.extend(allow());
    }
    out.extend(allow());
    out
}

/// Minors of GPUs are below 256, so distances are far below the maximum of a jump. MIG capabilities that do not fit one
/// jump are cut off, which refuses them.
fn distance(minors: usize) -> i16 {
    i16::try_from(minors).unwrap_or(i16::MAX - 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u32 = 2;

    /// Runs the program like the kernel for one access.
    fn allowed(rules: &DeviceRules, kind: u32, access: u32, major: u32, minor: u32) -> bool {
        let bytes: Vec<u8> = program(rules)
            .into_iter()
            .flat_map(Insn::to_bytes)
            .collect();
        let vm = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap();
        let mut context = Vec::new();
        for word in [access << 16 | kind, major, minor] {
            context.extend(word.to_ne_bytes());
        }
        let verdict = vm.execute_program(&mut context).unwrap();
        assert!(verdict <= 1, "the kernel expects 0 or 1, not {verdict}");
        verdict == 1
    }

    /// The meaning of the rules, computed in another way.
    fn expected(rules: &DeviceRules, kind: u32, access: u32, major: u32, minor: u32) -> bool {
        if kind != CHARACTER || access == MAKE {
            return true;
        }
        if major == rules.majors.nvidia {
            return minor == 255 || (minor < 254 && rules.minors.contains(&minor));
        }
        if Some(major) == rules.majors.uvm {
            return minor <= 1;
        }
        Some(major) != rules.majors.caps || rules.caps.contains(&minor)
    }

    #[test]
    fn every_access_is_judged_by_the_rules() {
        let full = Majors {
            nvidia: 195,
            uvm: Some(508),
            caps: Some(511),
        };
        let bare = Majors {
            nvidia: 240,
            uvm: None,
            caps: None,
        };
        let sets: [&[u32]; 5] = [&[], &[0], &[2], &[0, 1, 2, 3], &[7, 16, 247, 254]];
        let mut cases = 0;
        for majors in [full, bare] {
            for minors in sets {
                let mut rules = DeviceRules::gpus(majors.clone(), minors.iter().copied());
                for caps in [vec![], vec![3, 4, 130]] {
                    rules.caps = caps.into_iter().collect();
                    for kind in [1, CHARACTER] {
                        for access in 1..8 {
                            for major in [0, 1, OTHER, 195, 226, 240, 508, 511] {
                                for minor in [0, 1, 2, 3, 4, 7, 16, 130, 247, 253, 254, 255, 256] {
                                    assert_eq!(
                                        allowed(&rules, kind, access, major, minor),
                                        expected(&rules, kind, access, major, minor),
                                        "{rules:?} kind {kind} access {access} {major}:{minor}"
                                    );
                                    cases += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(cases, 2 * 5 * 2 * 2 * 7 * 8 * 13);
    }

    #[test]
    fn a_grant_of_one_gpu_reads_as_expected() {
        let majors = Majors {
            nvidia: 195,
            uvm: Some(508),
            caps: Some(511),
        };
        let rules = DeviceRules::gpus(majors, [1]);
        let open = |major, minor| allowed(&rules, CHARACTER, 6, major, minor);
        assert!(open(195, 1), "the granted GPU");
        assert!(!open(195, 0), "another GPU");
        assert!(open(195, 255), "nvidiactl");
        assert!(!open(195, 254), "nvidia-modeset");
        assert!(open(508, 0) && open(508, 1), "nvidia-uvm and its tools");
        assert!(!open(511, 1), "a MIG capability");
        assert!(
            open(1, 3) && open(226, 0),
            "/dev/null and a DRM node stay as they were"
        );
    }

    #[test]
    fn every_instruction_is_led_to() {
        let majors = Majors {
            nvidia: 195,
            uvm: Some(510),
            caps: Some(234),
        };
        for (minors, caps) in [
            (vec![], vec![]),
            (vec![0, 3], vec![]),
            (vec![1], vec![12, 13]),
        ] {
            let rules = DeviceRules {
                caps: caps.into_iter().collect(),
                ..DeviceRules::gpus(majors.clone(), minors)
            };
            let program: Vec<[u8; 8]> = program(&rules).into_iter().map(Insn::to_bytes).collect();
            let mut seen = vec![false; program.len()];
            let mut open = vec![0];
            while let Some(at) = open.pop() {
                if std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                let (code, far) = (
                    program[at][0],
                    i16::from_ne_bytes([program[at][2], program[at][3]]),
                );
                // Exit has no successor, a comparison two.
                if code == 0x95 {
                    continue;
                }
                open.push(at + 1);
                if matches!(code, 0x16 | 0x56) {
                    open.push(at + 1 + usize::try_from(far).unwrap());
                }
            }
            assert!(seen.iter().all(|s| *s), "{rules:?}: {seen:?}");
            assert!(!allowed(&rules, OTHER, 2, 234, 99));
        }
    }
}
