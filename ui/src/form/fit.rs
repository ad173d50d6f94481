//! Whether what was typed fits now, by what the snapshot says.

use gshare_proto::{GpuView, ResizeSpec, Snapshot};

use crate::text;

/// Whether a claim fits now, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It starts.
    Now(String),
    /// It does not, and why.
    Not(String),
}

/// Shares are thousandths; half of one is rounding.
const ROUNDING: f64 = 0.0005;

/// Looks whether a claim can have another size, by what the snapshot says is free on its GPUs.
pub(super) fn resize(spec: &ResizeSpec, snapshot: &Snapshot) -> Fit {
    let Some(claim) = snapshot.claims.iter().find(|c| c.id == spec.id) else {
        return Fit::Not(format!("{} has ended", spec.id));
    };
    for part in &claim.gpus {
        let Some(gpu) = snapshot.gpus.iter().find(|g| g.index == part.gpu) else {
            continue;
        };
        let size = spec.gpus_milli.map(|m| f64::from(m) / 1000.0);
        let by_size = size.and_then(|s| Some((gpu.mem_allocatable? as f64 * s) as u64));
        let wanted = spec.mem.or(by_size).unwrap_or(part.mem_request);
        let sm = size.unwrap_or(part.sm_request);
        let on = part.gpu;
        if let Some(charge) = part.mem_charge
            && wanted < charge
        {
            return Fit::Not(format!(
                "its programs have {} GiB on GPU {on}, more than {}",
                text::gib(charge),
                text::gib(wanted)
            ));
        }
        let grows = wanted.saturating_sub(part.mem_request);
        match free_memory(gpu) {
            Some(free) if grows > free => {
                return Fit::Not(format!(
                    "wants {} GiB more on GPU {on}; {} are free there",
                    text::gib(grows),
                    text::gib(free)
                ));
            }
            None if grows > 0 => {
                return Fit::Not(format!(
                    "GPU {on} does not answer, so nothing on it can grow"
                ));
            }
            _ => {}
        }
        if sm - part.sm_request > 1.0 - gpu.sm_claimed + ROUNDING {
            return Fit::Not(format!(
                "GPU {on} has {} of its SMs free",
                text::share(1.0 - gpu.sm_claimed)
            ));
        }
    }
    Fit::Now("fits now".to_owned())
}

/// Bytes that no claim holds.
fn free_memory(gpu: &GpuView) -> Option<u64> {
    Some(gpu.mem_allocatable?.saturating_sub(gpu.mem_claimed))
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ClaimGpu, ClaimView};

    use super::*;
    use crate::form::{Form, Kind, Value};
    use crate::input::LineInput;

    const GIB: u64 = 1 << 30;

    fn snapshot() -> Snapshot {
        let gpu = |index, claimable, sm_claimed, claimed| GpuView {
            index,
            claimable,
            sm_claimed,
            mem_allocatable: Some(20 * GIB),
            mem_claimed: claimed * GIB,
            ..GpuView::default()
        };
        Snapshot {
            gpus: vec![
                gpu(0, 0.25, 0.75, 15),
                gpu(1, 0.1, 0.1, 18),
                gpu(2, 1.0, 0.0, 0),
            ],
            ..Snapshot::default()
        }
    }

    /// A form with these on its first two lines.
    fn typed(mut form: Form, size: &str, memory: &str) -> Form {
        form.entries[0].value = Value::Text(LineInput::new(size));
        form.entries[1].value = Value::Text(LineInput::new(memory));
        form
    }

    #[test]
    fn what_was_typed_is_checked_and_is_a_command() {
        let wrong = |size: &str, memory: &str| {
            let form = typed(Form::claim(), size, "");
            let mut form = form;
            form.entries[3].value = Value::Text(LineInput::new(memory));
            form.fit(&snapshot()).err().unwrap_or_default()
        };
        assert_eq!(wrong("0.25", "8G"), "");
        assert!(wrong("1.5", "").contains("whole number"));
        assert!(wrong("", "").contains("write 0.25"));
        assert!(wrong("0.5", "8").contains("K, M, G or T"));
        let form = typed(Form::claim(), "0.25", "h100");
        assert_eq!(form.command(), "gshare claim -g 0.25 --model h100 --hold");
        assert_eq!(form.spec().unwrap().models, ["h100"]);
    }

    #[test]
    fn the_answer_counts_for_what_was_asked_alone() {
        let mut form = Form::claim();
        let tried = gshare_proto::Tried {
            starts: true,
            ..gshare_proto::Tried::default()
        };
        form.tried = Some((form.spec().unwrap(), Ok(tried)));
        assert!(form.answer().is_some());
        assert_eq!(typed(form, "0.2", "").answer(), None);
    }

    #[test]
    fn another_size_is_held_against_what_is_free() {
        let part = ClaimGpu {
            gpu: 0,
            sm_request: 0.25,
            sm_limit: 1.0,
            mem_request: 5 * GIB,
            mem_limit: 5 * GIB,
            mem_charge: Some(3 * GIB),
            ..ClaimGpu::default()
        };
        let claim = ClaimView {
            id: "c1".to_owned(),
            gpus: vec![part],
            ..ClaimView::default()
        };
        let mut snapshot = snapshot();
        snapshot.claims.push(claim.clone());
        let form = Form::resize(&claim);
        assert_eq!(
            form.kind,
            Kind::Resize {
                id: "c1".to_owned()
            }
        );
        let says = |size: &str, memory: &str| match typed(form.clone(), size, memory).fit(&snapshot)
        {
            Ok(Fit::Now(text) | Fit::Not(text)) | Err(text) => text,
        };
        assert!(says("", "").contains("write what changes"));
        assert_eq!(says("0.5", ""), "fits now");
        assert_eq!(
            says("0.75", ""),
            "wants 10.0 GiB more on GPU 0; 5.0 are free there"
        );
        assert_eq!(says("0.6", "5G"), "GPU 0 has .25 of its SMs free");
        assert!(says("0.1", "").contains("its programs have 3.0 GiB"));
    }
}
