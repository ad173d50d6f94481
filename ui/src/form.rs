//! The dialog that makes a claim: what was typed, what it means, and whether it fits now.

use gshare_proto::units::{Bytes, Share, parse_duration};
use gshare_proto::{ClaimSpec, GpuState, GpuView, Snapshot, Wait};

use crate::feed::Failure;
use crate::input::LineInput;
use crate::text;

/// Classes to choose from.
pub(crate) const CLASSES: [&str; 3] = ["interactive", "batch", "inference"];

/// A line of the dialog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Field {
    /// Part of a GPU, or whole GPUs.
    #[default]
    Size,
    /// Memory for each GPU.
    Memory,
    /// Name.
    Name,
    /// Class.
    Class,
    /// For how long.
    Hold,
}

impl Field {
    /// All, from the top.
    pub(crate) const ALL: [Self; 5] = [
        Self::Size,
        Self::Memory,
        Self::Name,
        Self::Class,
        Self::Hold,
    ];

    /// The next line, or the one before.
    pub(crate) fn step(self, forward: bool) -> Self {
        let n = Self::ALL.len();
        let at = Self::ALL.iter().position(|f| *f == self).unwrap_or(0);
        Self::ALL[(at + if forward { 1 } else { n - 1 }) % n]
    }
}

/// What was typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimForm {
    /// The line with the cursor.
    pub(crate) focus: Field,
    /// `-g`.
    pub(crate) size: LineInput,
    /// `--gpu-mem`; empty for the same part of the memory.
    pub(crate) memory: LineInput,
    /// `--name`; may be empty.
    pub(crate) name: LineInput,
    /// Index into [`CLASSES`].
    pub(crate) class: usize,
    /// `-t`; empty until released.
    pub(crate) hold: LineInput,
    /// The request that is on its way.
    pub(crate) sent: Option<u64>,
    /// Why the last one was refused.
    pub(crate) refused: Option<Failure>,
}

impl Default for ClaimForm {
    fn default() -> Self {
        Self {
            focus: Field::default(),
            size: LineInput::new("0.25"),
            memory: LineInput::default(),
            name: LineInput::default(),
            class: 0,
            hold: LineInput::default(),
            sent: None,
            refused: None,
        }
    }
}

impl ClaimForm {
    /// The line being typed; the class is chosen, not typed.
    pub(crate) fn line(&mut self) -> Option<&mut LineInput> {
        match self.focus {
            Field::Size => Some(&mut self.size),
            Field::Memory => Some(&mut self.memory),
            Field::Name => Some(&mut self.name),
            Field::Hold => Some(&mut self.hold),
            Field::Class => None,
        }
    }

    /// The claim that is meant, or what is wrong with it.
    pub(crate) fn spec(&self) -> Result<ClaimSpec, String> {
        let filled =
            |input: &LineInput| Some(input.text().trim().to_owned()).filter(|t| !t.is_empty());
        let size = filled(&self.size).ok_or("size: write 0.25, or 2 for two GPUs")?;
        let size: Share = size.parse().map_err(|e| format!("{e}"))?;
        if size > Share::ONE && !size.milli().is_multiple_of(1000) {
            return Err(format!(
                "size {size}: from one GPU on, write a whole number"
            ));
        }
        let mem = filled(&self.memory)
            .map(|t| t.parse::<Bytes>().map_err(|e| e.to_string()))
            .transpose()?;
        let hold = filled(&self.hold)
            .map(|t| parse_duration(&t).map_err(|e| e.to_string()))
            .transpose()?;
        Ok(ClaimSpec {
            gpus_milli: Some(size.milli()),
            mem: mem.map(|b| b.0),
            name: filled(&self.name),
            class: Some(CLASSES[self.class % CLASSES.len()].to_owned()),
            lease_s: hold.map(|d| d.as_secs()),
            wait: Wait::No,
            hold: true,
            ..ClaimSpec::default()
        })
    }
}

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
pub(crate) fn fit(spec: &ClaimSpec, snapshot: &Snapshot) -> Fit {
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
            names.join(" or ")
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

/// Bytes that no claim holds.
fn free_memory(gpu: &GpuView) -> Option<u64> {
    Some(gpu.mem_allocatable?.saturating_sub(gpu.mem_claimed))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn check(size: &str, memory: &str, want: Result<Fit, &str>) {
        let form = ClaimForm {
            size: LineInput::new(size),
            memory: LineInput::new(memory),
            ..ClaimForm::default()
        };
        let got = form.spec().map(|spec| fit(&spec, &snapshot()));
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{size} {memory}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
            (got, want) => panic!("{size} {memory}: {got:?}, not {want:?}"),
        }
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
        let spec = ClaimForm::default().spec().map(|mut s| {
            s.gpus_milli = Some(500);
            s
        });
        let want = Fit::Not("does not fit now: most free is .25 on GPU 0".to_owned());
        assert_eq!(spec.map(|s| fit(&s, &full)), Ok(want));
    }
}
