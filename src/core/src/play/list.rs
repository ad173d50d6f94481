//! Lists of claims: read from text, cut into blocks, scaled to a load, or synthetic.
//!
//! Columns are found by name: `arrival_s,duration_s,num_gpu,gpu_milli` and optionally `user`, or those of the pod lists
//! of the openb cluster (`creation_time`, `scheduled_time`, `deletion_time`).

use crate::claim::Class;

/// A claim of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entry {
    /// Time of the request, in seconds.
    pub arrival_s: f64,
    /// Run time if nothing stops it, in seconds.
    pub run_s: f64,
    pub gpus: u32,
    /// Thousandths of each GPU.
    pub milli: u32,
    /// Index of its owner.
    pub user: usize,
    pub class: Class,
    /// Its time limit, in seconds.
    pub limit_s: Option<f64>,
    /// Its owner postpones what is announced (`gshare keep`) as often as allowed.
    pub keeps: bool,
    /// Its owner extends the time limit whenever its end is near.
    pub extends: bool,
    /// It is requested when the claim this many places before it in the list has ended.
    pub after: Option<usize>,
}

impl Entry {
    /// Its size in GPUs.
    #[must_use]
    pub fn size(&self) -> f64 {
        f64::from(self.gpus) * f64::from(self.milli) / 1000.0
    }
}

/// Why a list cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("the list has no column `{0}`; it needs arrival_s, duration_s, num_gpu and gpu_milli")]
    Column(&'static str),
    #[error("line {line}: `{text}` is not a number")]
    Number { line: usize, text: String },
    #[error("no line of the list uses a GPU and has a run time")]
    Empty,
}

/// Reads a list. Lines without a GPU or without an end are left out.
///
/// # Errors
/// When columns are missing or a field is not a number.
pub fn read(text: &str) -> Result<Vec<Entry>, TraceError> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .collect();
    let column = |name: &'static str| header.iter().position(|h| *h == name);
    let need = |name: &'static str| column(name).ok_or(TraceError::Column(name));
    let (gpus, milli) = (need("num_gpu")?, need("gpu_milli")?);
    let pods = column("creation_time").is_some();
    let (start, end) = if pods {
        (need("scheduled_time")?, need("deletion_time")?)
    } else {
        (need("arrival_s")?, need("duration_s")?)
    };
    let arrival = if pods { need("creation_time")? } else { start };
    let user = column("user");
    let mut names: Vec<String> = Vec::new();
    let mut out = Vec::new();
    for (n, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |i: usize| -> Result<Option<f64>, TraceError> {
            let text = fields.get(i).copied().unwrap_or_default();
            if text.is_empty() {
                return Ok(None);
            }
            // `nan` and `inf` are not valid times.
            let number = text.parse().ok().filter(|n: &f64| n.is_finite());
            number.map(Some).ok_or_else(|| TraceError::Number {
                line: n + 2,
                text: text.to_owned(),
            })
        };
        let (Some(count), Some(part)) = (number(gpus)?, number(milli)?) else {
            continue;
        };
        let (Some(arrival_s), Some(start), Some(end)) =
            (number(arrival)?, number(start)?, number(end)?)
        else {
            continue;
        };
        let run_s = if pods { end - start } else { end };
        if count < 1.0 || part < 1.0 || run_s <= 0.0 {
            continue;
        }
        let user = match user.and_then(|u| fields.get(u)) {
            Some(name) => names.iter().position(|k| k == name).unwrap_or_else(|| {
                names.push((*name).to_owned());
                names.len() - 1
            }),
            None => 0,
        };
        out.push(Entry {
            arrival_s,
            run_s,
            gpus: count as u32,
            milli: (part as u32).min(1000),
            user,
            ..Entry::default()
        });
    }
    if out.is_empty() {
        return Err(TraceError::Empty);
    }
    out.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    Ok(out)
}

/// A small random number generator (xorshift*): the same seed produces the same blocks.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A random number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let top = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        top as f64 / (1u64 << 53) as f64
    }

    /// A random number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        ((self.unit() * most as f64) as usize).min(most.saturating_sub(1))
    }
}

/// Users' parts of a block's claims if the list has no users.
const USERS: [f64; 4] = [0.59, 0.21, 0.12, 0.08];

/// How to cut a block.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub claims: usize,
    /// GPUs of the machine; larger claims get this many.
    pub gpus: usize,
    /// Requested GPU-seconds divided by those of the machine.
    pub load: f64,
    /// Run times are clamped to this range, in seconds.
    pub run_s: (f64, f64),
}

impl Default for Cut {
    fn default() -> Self {
        Self {
            claims: 1500,
            gpus: 8,
            load: 0.9,
            run_s: (30.0, 6.0 * 3600.0),
        }
    }
}

/// A block of consecutive claims from a position chosen by the seed, with random users if the list has none. Times
/// between requests are exponentially distributed and scaled to the load.
#[must_use]
pub fn block(trace: &[Entry], cut: &Cut, seed: u64) -> Vec<Entry> {
    let mut dice = Dice::new(seed);
    let named = trace.iter().any(|e| e.user != trace[0].user);
    let from = dice.below(trace.len());
    let mut clock = 0.0;
    let mut out: Vec<Entry> = (0..cut.claims)
        .map(|i| {
            let mut e = trace[(from + i) % trace.len()];
            clock -= (1.0 - dice.unit()).ln();
            e.arrival_s = clock;
            e.run_s = e.run_s.clamp(cut.run_s.0, cut.run_s.1);
            e.gpus = e.gpus.min(cut.gpus as u32);
            if !named {
                let mut draw = dice.unit();
                let user = USERS.iter().position(|p| {
                    draw -= p;
                    draw < 0.0
                });
                e.user = user.unwrap_or(0);
            }
            e
        })
        .collect();
    stretch(&mut out, cut.gpus, cut.load);
    out
}

/// Scales the times between requests to a load.
pub fn stretch(list: &mut [Entry], gpus: usize, load: f64) {
    let work: f64 = list.iter().map(|e| e.size() * e.run_s).sum();
    let span = list.last().map_or(0.0, |e| e.arrival_s).max(1.0);
    let factor = work / (gpus as f64 * load * span);
    for e in list {
        e.arrival_s *= factor;
    }
}

/// A synthetic list that resembles a shared research cluster: most claims are a part of one GPU or a whole one, a few
/// have several; run times cover four orders of magnitude with a heavy tail; one request every ten minutes on average.
#[must_use]
pub fn synthetic(claims: usize, seed: u64) -> Vec<Entry> {
    const SIZES: [(f64, u32, u32); 10] = [
        (0.36, 1, 1000),
        (0.16, 1, 810),
        (0.13, 1, 470),
        (0.10, 1, 320),
        (0.08, 1, 650),
        (0.06, 1, 230),
        (0.05, 1, 500),
        (0.04, 1, 110),
        (0.01, 2, 1000),
        (0.01, 4, 1000),
    ];
    let mut dice = Dice::new(seed);
    let mut clock = 0.0;
    (0..claims)
        .map(|_| {
            clock -= 600.0 * (1.0 - dice.unit()).ln();
            let mut draw = dice.unit();
            let size = SIZES.iter().find(|(part, ..)| {
                draw -= part;
                draw < 0.0
            });
            let (_, gpus, milli) = size.copied().unwrap_or(SIZES[0]);
            // Approximates a normal distribution by the sum of twelve uniform numbers; the run time is log-normal.
            let normal: f64 = (0..12).map(|_| dice.unit()).sum::<f64>() - 6.0;
            Entry {
                arrival_s: clock,
                run_s: 655.0 * (1.9 * normal).exp(),
                gpus,
                milli,
                ..Entry::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_faults_are_named() {
        let own = "user,arrival_s,duration_s,num_gpu,gpu_milli\nada,5,60,1,500\nbob,1,10,2,1000\nada,2,9,0,0\n";
        let read_own = read(own).expect("valid");
        assert_eq!(read_own.len(), 2, "without a GPU it is no claim");
        assert_eq!(
            (read_own[0].user, read_own[0].gpus, read_own[0].run_s),
            (1, 2, 10.0)
        );
        let pods = "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\np,1,460,10,100,40\nq,1,460,10,,\n";
        assert_eq!(read(pods).expect("valid")[0].run_s, 60.0);
        assert_eq!(read("a,b\n1,2\n"), Err(TraceError::Column("num_gpu")));
        let bad = "arrival_s,duration_s,num_gpu,gpu_milli\n0,x,1,500\n";
        assert_eq!(
            read(bad).expect_err("no number").to_string(),
            "line 2: `x` is not a number"
        );
        assert_eq!(
            read("arrival_s,duration_s,num_gpu,gpu_milli\n"),
            Err(TraceError::Empty)
        );
    }

    #[test]
    fn a_block_has_the_load_that_was_asked_and_is_the_same_for_the_same_seed() {
        let trace = synthetic(400, 1);
        let cut = Cut {
            claims: 300,
            ..Cut::default()
        };
        let list = block(&trace, &cut, 7);
        assert_eq!(list, block(&trace, &cut, 7));
        assert_ne!(list, block(&trace, &cut, 8));
        let work: f64 = list.iter().map(|e| e.size() * e.run_s).sum();
        let load = work / (8.0 * list[299].arrival_s);
        assert!((load - 0.9).abs() < 1e-9, "{load}");
        assert!(list.windows(2).all(|w| w[0].arrival_s <= w[1].arrival_s));
        let first = list.iter().filter(|e| e.user == 0).count();
        assert!(
            (150..210).contains(&first),
            "{first} of 300 are the first user's"
        );
    }
}
