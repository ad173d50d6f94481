//! What Slurm writes about GPUs and their shards, without IO.

/// The shards that a job was given on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shards {
    /// None: it has whole GPUs.
    Whole,
    /// So many, of one GPU.
    Of(u64),
    /// So many on each of its GPUs.
    Each(Vec<u64>),
}

/// Reads what Slurm gave a job: `gpu:2(IDX:0-1)`, `shard:30(IDX:0)`, in later versions `shard:30(30/100,0/100)`.
pub(super) fn shards(detail: &str) -> Shards {
    let found = entries(detail).find(|(name, ..)| *name == "shard");
    let Some((_, count, inside)) = found else {
        return Shards::Whole;
    };
    let each = inside.split(',');
    let each: Option<Vec<u64>> = each
        .map(|of| of.split_once('/')?.0.trim().parse().ok())
        .collect();
    match each {
        Some(each) => Shards::Each(each.into_iter().filter(|n| *n > 0).collect()),
        None => Shards::Of(count),
    }
}

/// How much of a resource a node has: `gpu:a100:2(S:0),shard:200`.
pub(super) fn total(node: &str, name: &str) -> u64 {
    let of = entries(node).filter(|(n, ..)| *n == name);
    of.map(|(_, count, _)| count).sum()
}

/// Each entry's name, its count, and what stands in brackets behind it.
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

/// Thousandths of a GPU that a number of its shards stands for.
pub(super) fn milli(shards: u64, per_gpu: u64) -> u32 {
    let milli = (shards.saturating_mul(1000)).checked_div(per_gpu);
    u32::try_from(milli.unwrap_or(1000).clamp(1, 1000)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_was_given_is_read() {
        for whole in ["gpu:2(IDX:0-1)", "gpu:a100:1(IDX:3)", "craynetwork:1", ""] {
            assert_eq!(shards(whole), Shards::Whole, "{whole}");
        }
        assert_eq!(shards("shard:30(IDX:0)"), Shards::Of(30));
        assert_eq!(shards("tmp:5,shard:a100:30(IDX:0)"), Shards::Of(30));
        let counted = shards("gpu:1(IDX:0,2),shard:30(20/100,0/100,10/100)");
        assert_eq!(counted, Shards::Each(vec![20, 10]));
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
