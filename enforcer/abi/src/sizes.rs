//! Memory sizes suggested to a program after a refusal, the same in the program and in the service.

/// Size to suggest for a resize, in bytes and as the command line takes it: a fifth above the peak, as the next
/// allocation is near, or just `needed` if no more than `reach` is available.
pub fn enough(needed: u64, peak: u64, reach: u64) -> Option<String> {
    let peak = needed.max(peak);
    size_between(peak.saturating_add(peak / 5), reach).or_else(|| size_between(needed, reach))
}

/// The roundest size from `least` to `most`, in the command line's form.
pub fn size_between(least: u64, most: u64) -> Option<String> {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    // A step above half of `least` would round up too far.
    let steps = [GIB, GIB / 2, 64 * MIB, MIB];
    let size = steps
        .into_iter()
        .filter(|step| *step == MIB || *step <= least / 2)
        .filter_map(|step| least.checked_next_multiple_of(step))
        .find(|size| *size <= most)?;
    Some(if size.is_multiple_of(GIB) {
        format!("{}G", size / GIB)
    } else if size.is_multiple_of(GIB / 2) {
        format!("{:.1}G", size as f64 / GIB as f64)
    } else {
        format!("{}M", size / MIB)
    })
}

#[cfg(test)]
mod tests {
    use super::size_between;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_are_round_and_in_bounds() {
        for (least, most, size) in [
            (600 * MIB, u64::MAX, Some("640M")),
            (100 * MIB + 1, u64::MAX, Some("101M")),
            (3 * GIB + 1, 4 * GIB, Some("4G")),
            (3 * GIB + 1, 4 * GIB - 1, Some("3.5G")),
            (3 * GIB + 1, 3 * GIB + MIB, Some("3073M")),
            (3 * GIB + 1, 3 * GIB + MIB - 1, None),
            (2 * GIB, 2 * GIB, Some("2G")),
            (u64::MAX, u64::MAX, None),
        ] {
            assert_eq!(size_between(least, most).as_deref(), size, "{least} {most}");
        }
    }
}
