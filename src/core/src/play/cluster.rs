//! Fills a cluster as in the work on fragmentation (FGD, Weng et al., ATC'23): pods arrive one after the other, none
//! leaves, and those that do not fit are skipped. It shows that the baselines of the replay match the published ones.

use std::collections::HashMap;

use super::list::{Dice, TraceError};

/// A host of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Thousandths of processor cores.
    pub cpu: u64,
    /// MiB of host memory.
    pub mem: u64,
    /// GPUs, at most eight.
    pub gpus: usize,
}

/// A pod to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Thousandths of processor cores.
    pub cpu: u64,
    /// MiB of host memory.
    pub mem: u64,
    /// Number of GPUs; 1 for a part of one.
    pub gpus: usize,
    /// Thousandths of each GPU.
    pub milli: u32,
}

impl Pod {
    fn gpu_milli(&self) -> u64 {
        self.gpus as u64 * u64::from(self.milli)
    }
}

/// How to choose a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// The least left, processor and GPU weighted equally.
    BestFit,
    /// The least growth of the part that typical pods cannot use.
    Fgd,
}

const MOST_GPUS: usize = 8;

/// Reads hosts: `cpu_milli,memory_mib,gpu`. Hosts without GPUs are left out.
///
/// # Errors
/// When columns are missing or a field is not a number.
pub fn hosts(text: &str) -> Result<Vec<Host>, TraceError> {
    let rows = rows(text, ["cpu_milli", "memory_mib", "gpu"])?;
    let host = |[cpu, mem, gpus]: [u64; 3]| Host {
        cpu,
        mem,
        gpus: (gpus as usize).min(MOST_GPUS),
    };
    Ok(rows.into_iter().map(host).filter(|h| h.gpus > 0).collect())
}

/// Reads pods: `cpu_milli,memory_mib,num_gpu,gpu_milli`, with or without GPUs.
///
/// # Errors
/// When columns are missing or a field is not a number.
pub fn pods(text: &str) -> Result<Vec<Pod>, TraceError> {
    let rows = rows(text, ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])?;
    let pod = |[cpu, mem, gpus, milli]: [u64; 4]| Pod {
        cpu,
        mem,
        gpus: (gpus as usize).min(MOST_GPUS),
        milli: if gpus == 0 { 0 } else { milli.min(1000) as u32 },
    };
    Ok(rows.into_iter().map(pod).collect())
}

fn rows<const N: usize>(text: &str, names: [&'static str; N]) -> Result<Vec<[u64; N]>, TraceError> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut columns = [0; N];
    for (column, name) in columns.iter_mut().zip(names) {
        let found = header.iter().position(|h| h.trim() == name);
        *column = found.ok_or(TraceError::Column(name))?;
    }
    let mut out = Vec::new();
    for (n, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let mut row = [0; N];
        for (value, column) in row.iter_mut().zip(columns) {
            let text = fields.get(column).copied().unwrap_or_default().trim();
            *value = text.parse().map_err(|_| TraceError::Number {
                line: n + 2,
                text: text.to_owned(),
            })?;
        }
        out.push(row);
    }
    if out.is_empty() {
        return Err(TraceError::Empty);
    }
    Ok(out)
}

/// Free resources of a host.
#[derive(Clone, Copy)]
struct Left {
    cpu: u64,
    mem: u64,
    gpus: usize,
    free: [u32; MOST_GPUS],
    /// Incremented with each placement.
    version: u32,
}

impl Left {
    fn fits(&self, pod: &Pod) -> bool {
        let able = self.free[..self.gpus].iter().filter(|f| **f >= pod.milli);
        pod.cpu <= self.cpu && pod.mem <= self.mem && (pod.gpus == 0 || able.count() >= pod.gpus)
    }

    fn gpu_left(&self) -> u64 {
        self.free[..self.gpus].iter().map(|f| u64::from(*f)).sum()
    }

    fn take(&mut self, pod: &Pod, at: Option<usize>) {
        self.cpu -= pod.cpu;
        self.mem -= pod.mem;
        self.version += 1;
        if let Some(g) = at {
            self.free[g] -= pod.milli;
            return;
        }
        let mut left = pod.gpus;
        for free in &mut self.free[..self.gpus] {
            if left > 0 && *free >= pod.milli {
                *free -= pod.milli;
                left -= 1;
            }
        }
    }

    /// What typical pods cannot use of it, in thousandths of GPUs.
    fn fragment(&self, typical: &[(Pod, f64)]) -> f64 {
        let all = self.gpu_left() as f64;
        let lost = |pod: &Pod| {
            let free = &self.free[..self.gpus];
            let able = free.iter().filter(|f| **f >= pod.milli).count();
            if pod.gpus == 0 || pod.cpu > self.cpu || able < pod.gpus {
                return all;
            }
            let small = free.iter().filter(|f| **f < pod.milli);
            small.map(|f| f64::from(*f)).sum()
        };
        typical.iter().map(|(pod, part)| part * lost(pod)).sum()
    }
}

/// The most frequent pods, 95 % of all, with their frequencies.
fn typical(pods: &[Pod]) -> Vec<(Pod, f64)> {
    let mut count: HashMap<Pod, usize> = HashMap::new();
    for pod in pods {
        *count.entry(Pod { mem: 0, ..*pod }).or_default() += 1;
    }
    let mut all: Vec<(Pod, usize)> = count.into_iter().collect();
    all.sort_by_key(|(p, n)| (std::cmp::Reverse(*n), p.cpu, p.gpus, p.milli));
    let (mut sum, mut out) = (0, Vec::new());
    for (pod, n) in all {
        if sum * 100 >= pods.len() * 95 {
            break;
        }
        sum += n;
        out.push((pod, n as f64 / pods.len() as f64));
    }
    out
}

/// Fills the cluster with the pods, and then with random ones of them, until `ratio` of its GPUs has been requested.
/// `seed` determines the order. Returns the allocated fraction of GPUs.
#[must_use]
pub fn fill(hosts: &[Host], pods: &[Pod], ratio: f64, score: Score, seed: u64) -> f64 {
    let capacity = hosts.iter().map(|h| h.gpus as u64 * 1000).sum::<u64>();
    let mut dice = Dice::new(seed);
    let mut asked: u64 = pods.iter().map(Pod::gpu_milli).sum();
    let mut list: Vec<Pod> = pods.to_vec();
    while (asked as f64) < ratio * capacity as f64 {
        let pod = pods[dice.below(pods.len())];
        asked += pod.gpu_milli();
        list.push(pod);
    }
    for i in (1..list.len()).rev() {
        list.swap(i, dice.below(i + 1));
    }
    let typical = typical(pods);
    let most_cpu = hosts.iter().map(|h| h.cpu).max().unwrap_or(1) as f64;
    let mut left: Vec<Left> = hosts
        .iter()
        .map(|h| {
            let mut free = [0; MOST_GPUS];
            free[..h.gpus].fill(1000);
            Left {
                cpu: h.cpu,
                mem: h.mem,
                gpus: h.gpus,
                free,
                version: 0,
            }
        })
        .collect();
    // Scores by kind of pod and host, valid until the host changes.
    let mut known: HashMap<Pod, Vec<(u32, Option<Choice>)>> = HashMap::new();
    let mut held = 0u64;
    for pod in &list {
        let scores = known
            .entry(*pod)
            .or_insert_with(|| vec![(u32::MAX, None); hosts.len()]);
        let mut best: Option<(usize, Choice)> = None;
        for (index, (host, (version, choice))) in left.iter().zip(scores.iter_mut()).enumerate() {
            if *version != host.version {
                *version = host.version;
                *choice = host.fits(pod).then(|| match score {
                    Score::BestFit => best_fit(host, pod, most_cpu),
                    Score::Fgd => fgd(host, pod, &typical),
                });
            }
            if let Some(choice) = choice
                && best.is_none_or(|(_, b)| choice.points > b.points)
            {
                best = Some((index, *choice));
            }
        }
        if let Some((index, choice)) = best {
            left[index].take(pod, choice.gpu);
            held += pod.gpu_milli();
        }
    }
    held as f64 / capacity as f64
}

#[derive(Clone, Copy)]
struct Choice {
    /// Larger is better; the first of equal hosts is taken.
    points: i64,
    /// The GPU, for a part of one.
    gpu: Option<usize>,
}

fn best_fit(host: &Left, pod: &Pod, most_cpu: f64) -> Choice {
    let cpu = (host.cpu - pod.cpu) as f64 / most_cpu;
    let gpu = (host.gpu_left() - pod.gpu_milli()) as f64 / (MOST_GPUS as f64 * 1000.0);
    let fits = (0..host.gpus).filter(|&g| host.free[g] >= pod.milli);
    let part = pod.gpus == 1 && pod.milli < 1000;
    let at = fits.min_by_key(|&g| (host.free[g], g)).filter(|_| part);
    Choice {
        points: ((1.0 - (cpu + gpu) / 2.0) * 100.0).floor() as i64,
        gpu: at,
    }
}

fn fgd(host: &Left, pod: &Pod, typical: &[(Pod, f64)]) -> Choice {
    let before = host.fragment(typical);
    let points = |at: Option<usize>| {
        let mut after = *host;
        after.take(pod, at);
        let gained = (before - after.fragment(typical)) / 1000.0;
        (100.0 / (1.0 + (-gained).exp())).floor() as i64
    };
    if pod.gpus != 1 || pod.milli == 1000 {
        return Choice {
            points: points(None),
            gpu: None,
        };
    }
    let fits = (0..host.gpus).filter(|&g| host.free[g] >= pod.milli);
    let all = fits.map(|g| Choice {
        points: points(Some(g)),
        gpu: Some(g),
    });
    let none = Choice {
        points: 0,
        gpu: None,
    };
    all.reduce(|a, b| if b.points > a.points { b } else { a })
        .unwrap_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_what_fits_is_placed() {
        let hosts = hosts("sn,cpu_milli,memory_mib,gpu,model\na,8000,1000,2,X\nb,8000,1000,0,X\n");
        let hosts = hosts.expect("read");
        assert_eq!(hosts.len(), 1);
        let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,10,1,500\nq,1000,10,1,1000\nr,1000,10,0,0\n";
        let pods = pods(text).expect("read");
        assert_eq!(pods[2].milli, 0);
        for score in [Score::BestFit, Score::Fgd] {
            let full = fill(&hosts, &pods, 1.3, score, 1);
            assert!((0.75..=1.0).contains(&full), "{full}");
            assert_eq!(
                full,
                fill(&hosts, &pods, 1.3, score, 1),
                "the same for the same seed"
            );
        }
        assert!(matches!(
            super::pods("a\n1\n"),
            Err(TraceError::Column("cpu_milli"))
        ));
    }

    #[test]
    fn a_half_goes_where_it_leaves_no_more_fragments() {
        // One GPU has half left, the other is empty: the half should go to the first.
        let host = Left {
            cpu: 8000,
            mem: 0,
            gpus: 2,
            free: [500, 1000, 0, 0, 0, 0, 0, 0],
            version: 0,
        };
        let pod = |milli| Pod {
            cpu: 0,
            mem: 0,
            gpus: 1,
            milli,
        };
        let typical = [(pod(500), 0.5), (pod(1000), 0.5)];
        assert_eq!(fgd(&host, &pod(500), &typical).gpu, Some(0));
        assert_eq!(best_fit(&host, &pod(500), 8000.0).gpu, Some(0));
    }
}
