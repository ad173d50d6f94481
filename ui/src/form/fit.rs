//! Whether what was typed fits now, by what the snapshot says.

use gshare_proto::{ClaimSpec, GpuState, GpuView, ResizeSpec, Snapshot};

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

/// Looks for GPUs with room for `spec`, by what the snapshot says is claimable.
pub(super) fn claim(spec: &ClaimSpec, snapshot: &Snapshot) -> Fit {
    let milli = spec.gpus_milli.unwrap_or(1000);
    let count = (milli / 1000).max(1) as usize;
    let part = f64::from(milli.min(1000)) / 1000.0;
    let alive = || snapshot.gpus.iter().filter(|g| g.state == GpuState::Ok);
    let room = |g: &&GpuView| match spec.mem {
        None => g.claimable + ROUNDING >= part,
        Some(mem) => {
            g.claimable > 0.0
                && 1.0 - g.sm_claimed + ROUNDING >= part
                && free_memory(g).is_some_and(|free| free >= mem)
        }
    };
    let found: Vec<&GpuView> = alive().filter(room).collect();
    if found.len() >= count {
        let names: Vec<String> = found.iter().map(|g| g.index.to_string()).collect();
        let each = spec.mem.map(text::gib).or_else(|| {
            let bytes = found.first()?.mem_allocatable? as f64 * part;
            let same = found
                .iter()
                .all(|g| g.mem_allocatable == found[0].mem_allocatable);
            same.then(|| text::gib(bytes as u64))
        });
        let each = each
            .map(|gib| format!(", {gib} GiB each"))
            .unwrap_or_default();
        let several = if count > 1 {
            format!("{count} of ")
        } else {
            String::new()
        };
        return Fit::Now(format!(
            "starts now on {several}GPU {}{each}",
            either(&names)
        ));
    }
    if let Some(head) = snapshot.queue.first()
        && alive().all(|g| g.claimable <= 0.0)
    {
        let others = snapshot.queue.len() - 1;
        let more = if others == 0 {
            String::new()
        } else {
            format!(" and {others} more")
        };
        return Fit::Not(format!("{}{more} came first and waits", head.id));
    }
    if count > 1 {
        return Fit::Not(format!("needs {count} free GPUs; {} free now", found.len()));
    }
    let best = |key: fn(&GpuView) -> f64| alive().max_by(|a, b| key(a).total_cmp(&key(b)));
    let too_much_memory = spec
        .mem
        .filter(|mem| !alive().any(|g| free_memory(g).is_some_and(|free| free >= *mem)));
    let why = if let Some(mem) = too_much_memory {
        best(|g| free_memory(g).unwrap_or(0) as f64).map(|g| {
            let free = free_memory(g).map_or_else(|| "unknown".to_owned(), text::gib);
            format!(
                "wants {} GiB; most free is {free} on GPU {}",
                text::gib(mem),
                g.index
            )
        })
    } else if spec.mem.is_some() {
        best(|g| 1.0 - g.sm_claimed).map(|g| {
            let free = text::share(1.0 - g.sm_claimed);
            format!(
                "no GPU has both; GPU {} has {free} of its SMs free",
                g.index
            )
        })
    } else {
        best(|g| g.claimable).map(|g| {
            let free = text::share(g.claimable);
            format!("does not fit now: most free is {free} on GPU {}", g.index)
        })
    };
    Fit::Not(why.unwrap_or_else(|| "no GPU answers".to_owned()))
}

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

/// `0`, `0 or 2`, `0, 2 or 3`.
fn either(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
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

    fn check_form(form: &Form, want: Result<Fit, &str>) {
        match (form.fit(&snapshot()), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{form:?}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
            (got, want) => panic!("{form:?}: {got:?}, not {want:?}"),
        }
    }

    fn check(size: &str, memory: &str, want: Result<Fit, &str>) {
        check_form(&typed(Form::claim(), size, memory), want);
    }

    #[test]
    fn the_dialog_says_what_would_happen() {
        let now = |t: &str| Ok(Fit::Now(t.to_owned()));
        let not = |t: &str| Ok(Fit::Not(t.to_owned()));
        check("0.25", "", now("starts now on GPU 0 or 2, 5.0 GiB each"));
        check("1", "", now("starts now on GPU 2, 20.0 GiB each"));
        check("2", "", not("needs 2 free GPUs; 1 free now"));
        check("0.5", "4G", now("starts now on GPU 2, 4.0 GiB each"));
        check(
            "0.5",
            "21G",
            not("wants 21.0 GiB; most free is 20.0 on GPU 2"),
        );
        check("1.5", "", Err("whole number"));
        check("", "", Err("write 0.25"));
        check("0.5", "8", Err("K, M, G or T"));
    }

    #[test]
    fn a_full_machine_names_the_best_gpu() {
        let mut full = snapshot();
        full.gpus[2].claimable = 0.0;
        let want = Fit::Not("does not fit now: most free is .25 on GPU 0".to_owned());
        let got = typed(Form::claim(), "0.5", "").fit(&full);
        assert_eq!(got, Ok(want));
    }

    #[test]
    fn what_the_service_says_counts_more_than_the_guess() {
        let mut form = Form::claim();
        let refused = crate::feed::Failure {
            message: "would wait: quota".to_owned(),
            hint: None,
        };
        form.tried = Some((form.spec().unwrap(), Err(refused)));
        check_form(&form, Ok(Fit::Not("would wait: quota".to_owned())));
        // Said of something else, it says nothing.
        let now = Fit::Now("starts now on GPU 0 or 2, 4.0 GiB each".to_owned());
        check_form(&typed(form, "0.2", ""), Ok(now));
    }

    #[test]
    fn names_are_listed_as_one_says_them() {
        let names = ["0", "2", "3"].map(str::to_owned);
        assert_eq!(
            [0, 1, 2, 3].map(|n| either(&names[..n])),
            ["", "0", "0 or 2", "0, 2 or 3"]
        );
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
