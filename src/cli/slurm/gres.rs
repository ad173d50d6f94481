//! Parses Slurm's notation for GPUs and shards, without IO.

/// A job's allocation on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// Its GPUs in Slurm's numbering: from 0 in the order of gres.conf.
    pub(super) gpus: Vec<u32>,
    /// Its shards of each, if it has no whole GPUs; a single number if Slurm does not name the GPUs.
    pub(super) shards: Option<Vec<u64>>,
}

/// Parses a job's allocation: `gpu:2(IDX:0-1)`, `shard:30(IDX:0)`, in later versions `shard:30(30/100,0/100)`.
pub(super) fn given(detail: &str) -> Option<Given> {
    let of = |wanted: &'static str| entries(detail).filter(move |(name, ..)| *name == wanted);
    let Some((_, count, inside)) = of("shard").next() else {
        let gpus = of("gpu").map(|(.., inside)| numbers(inside.strip_prefix("IDX:")?));
        let gpus = gpus.collect::<Option<Vec<_>>>()?.concat();
        return (!gpus.is_empty()).then_some(Given { gpus, shards: None });
    };
    if let Some(list) = inside.strip_prefix("IDX:") {
        let (gpus, shards) = (numbers(list)?, Some(vec![count]));
        return Some(Given { gpus, shards });
    }
    let each = inside.split(',');
    let each = each.map(|of| of.split_once('/')?.0.trim().parse().ok());
    let each: Vec<u64> = each.collect::<Option<_>>()?;
    let own = (0u32..).zip(each).filter(|(_, n)| *n > 0);
    let (gpus, shards) = own.unzip();
    let shards = Some(shards);
    Some(Given { gpus, shards })
}

/// Amount of a resource on a node: `gpu:a100:2(S:0),shard:200`.
pub(super) fn total(node: &str, name: &str) -> u64 {
    let of = entries(node).filter(|(n, ..)| *n == name);
    of.map(|(_, count, _)| count).sum()
}

/// Name, count, and bracketed part of each entry.
fn entries(text: &str) -> impl Iterator<Item = (&str, u64, &str)> {
    let mut depth = 0i32;
    let comma = move |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(comma).map(|word| {
        let (head, inside) = word.split_once('(').unwrap_or((word, ""));
        let (name, rest) = head.split_once(':').unwrap_or((head, "1"));
        let count = rest.rsplit(':').next().and_then(|n| n.parse().ok());
        (
            name.trim(),
            count.unwrap_or(0),
            inside.trim_end_matches(')'),
        )
    })
}

/// The numbers of a list: `0,2-3`.
pub(super) fn numbers(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to - from > 4096 {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// Thousandths of a GPU for a number of its shards.
pub(super) fn milli(shards: u64, per_gpu: u64) -> u32 {
    let milli = (shards.saturating_mul(1000)).checked_div(per_gpu);
    u32::try_from(milli.unwrap_or(1000).clamp(1, 1000)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_was_given_is_read() {
        let of = |text: &str| given(text).map(|g| (g.gpus, g.shards));
        assert_eq!(of("gpu:2(IDX:0-1)"), Some((vec![0, 1], None)));
        let models = "gpu:a100:1(IDX:3),gpu:h100:1(IDX:5),tmp:5";
        assert_eq!(of(models), Some((vec![3, 5], None)));
        let one = Some((vec![2], Some(vec![30])));
        assert_eq!(of("shard:30(IDX:2)"), one);
        assert_eq!(of("tmp:5,shard:a100:30(0/100,0/100,30/100)"), one);
        let counted = of("gpu:1(IDX:0,2),shard:30(20/100,0/100,10/100)");
        assert_eq!(counted, Some((vec![0, 2], Some(vec![20, 10]))));
        for none in ["craynetwork:1", "", "gpu:1", "shard:3(IDX:x)"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(numbers("0,2-4"), Some(vec![0, 2, 3, 4]));
        for bad in ["4-2", "a", "", "0-99999999"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_shard_keeps_the_meaning_that_the_site_gave_it() {
        let node = "gpu:a100:2(S:0),gpu:h100:2(S:1),shard:32(S:0-1)";
        assert_eq!((total(node, "gpu"), total(node, "shard")), (4, 32));
        assert_eq!((total("gpu", "gpu"), total("(null)", "shard")), (1, 0));
        assert_eq!((milli(1, 8), milli(50, 100), milli(1, 3)), (125, 500, 333));
        assert_eq!((milli(1, 5000), milli(9, 8), milli(1, 0)), (1, 1000, 1000));
    }
}
