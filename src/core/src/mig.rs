//! Division of a GPU into instances (MIG): where the instances of a layout go, and what fits if not all of them do.
//!
//! The driver lists where instances of a profile may start, and two instances cannot share a memory slice. There is no
//! other rule (nvml.h: `nvmlDeviceGetGpuInstancePossiblePlacements_v2`).

use std::fmt;
use std::str::FromStr;

/// An instance profile of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// For example `2g.20gb`.
    pub name: String,
    /// The driver's id of the profile.
    pub id: u32,
    /// Memory slices of an instance.
    pub size: u32,
    /// First memory slice of each possible place.
    pub starts: Vec<u32>,
    /// Maximum number of instances on a GPU: fewer than places if each needs a resource that the GPU has once.
    pub most: usize,
    /// Video decoders of an instance; the GPU has as many as its largest profile.
    pub decoders: u32,
}

/// The instances that a GPU should have, by profile name: `3g.40gb+2g.20gb+1g.10gb`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(Vec<String>);

/// A text that is not a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLayout;

impl fmt::Display for NoLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a layout names profiles: 3g.40gb+2g.20gb+1g.10gb, or off")
    }
}

impl std::error::Error for NoLayout {}

impl FromStr for Layout {
    type Err = NoLayout;

    fn from_str(text: &str) -> Result<Self, NoLayout> {
        if text.trim() == OFF {
            return Ok(Self::default());
        }
        let mut names: Vec<String> = Vec::new();
        for part in text.split(['+', ',']).map(str::trim) {
            match names.last_mut() {
                Some(name) if WITH.contains(&part) => *name = format!("{name}+{part}"),
                _ => names.push(part.to_owned()),
            }
        }
        let is_profile = |name: &String| {
            let plain = name
                .split_once('+')
                .map_or(name.as_str(), |(plain, _)| plain);
            let plain = plain.strip_suffix("-me").unwrap_or(plain);
            let (slices, memory) = plain.split_once("g.").unwrap_or_default();
            let memory = memory.strip_suffix("gb").unwrap_or_default();
            slices.parse::<u32>().is_ok() && memory.parse::<u32>().is_ok()
        };
        match names.len() <= MOST && names.iter().all(is_profile) {
            true => Ok(Self(names)),
            false => Err(NoLayout),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_off() {
            true => f.write_str(OFF),
            false => f.write_str(&self.0.join("+")),
        }
    }
}

/// The layout of an undivided GPU.
const OFF: &str = "off";
/// What profile names may have after a plus: media engines (some, or all of the GPU's), graphics.
const WITH: [&str; 3] = ["me", "me.all", "gfx"];
/// More instances than any GPU can have.
const MOST: usize = 16;

impl Layout {
    /// A layout of the profiles with these names.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// Whether the GPU should stay undivided.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.0.is_empty()
    }
}

/// Place of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The driver's id of the profile.
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
}

/// Why a layout is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// A profile that the GPU does not have.
    pub unknown: Option<String>,
    /// The part of the layout that fits, largest instances first.
    pub fits: Layout,
    /// The GPU's profiles, with the maximum number of instances of each alone.
    pub profiles: Vec<(String, usize)>,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unknown {
            Some(name) => write!(f, "this GPU has no profile {name}")?,
            None => write!(
                f,
                "these instances do not fit together; {} would fit",
                self.fits
            )?,
        }
        let all = self
            .profiles
            .iter()
            .map(|(name, n)| format!("{n} x {name}"));
        let all = all.collect::<Vec<_>>().join(", ");
        write!(f, " (most instances of a single profile: {all})")
    }
}

impl std::error::Error for NoRoom {}

/// The places of a layout. Existing instances keep their places if possible.
///
/// # Errors
/// [`NoRoom`] if not all of it fits, or the GPU lacks a profile.
pub fn places(
    profiles: &[Profile],
    layout: &Layout,
    there: &[Place],
) -> Result<Vec<Place>, NoRoom> {
    let find = |name: &String| profiles.iter().find(|p| p.name == *name);
    let no_room = |unknown: Option<&String>| NoRoom {
        unknown: unknown.cloned(),
        fits: largest(profiles, layout, there),
        profiles: profiles
            .iter()
            .map(|p| (p.name.clone(), p.starts.len().min(p.most)))
            .collect(),
    };
    if let Some(name) = layout.0.iter().find(|name| find(name).is_none()) {
        return Err(no_room(Some(name)));
    }
    let mut wanted: Vec<&Profile> = layout.0.iter().filter_map(find).collect();
    wanted.sort_by_key(|p| std::cmp::Reverse(p.size));
    let mut found = Vec::new();
    match fill(&wanted, there, (0, decoders(profiles)), &mut found) {
        true => Ok(found),
        false => Err(no_room(None)),
    }
}

/// The longest prefix of a layout that fits, sorted by size, largest first.
fn largest(profiles: &[Profile], layout: &Layout, there: &[Place]) -> Layout {
    let known = layout.0.iter();
    let mut wanted: Vec<&Profile> = known
        .filter_map(|name| profiles.iter().find(|p| p.name == *name))
        .collect();
    wanted.sort_by_key(|p| std::cmp::Reverse(p.size));
    let mut kept: Vec<&Profile> = Vec::new();
    for profile in wanted {
        kept.push(profile);
        if !fill(&kept, there, (0, decoders(profiles)), &mut Vec::new()) {
            kept.pop();
        }
    }
    Layout(kept.into_iter().map(|p| p.name.clone()).collect())
}

/// Decoders of the whole GPU.
fn decoders(profiles: &[Profile]) -> u32 {
    profiles.iter().map(|p| p.decoders).max().unwrap_or(0)
}

/// Places the wanted instances one by one, and backtracks if the rest has no room. `taken` has a bit for each slice,
/// `decoders` counts those left.
fn fill(
    wanted: &[&Profile],
    there: &[Place],
    (taken, decoders): (u64, u32),
    found: &mut Vec<Place>,
) -> bool {
    let Some((first, rest)) = wanted.split_first() else {
        return true;
    };
    let place = |start: &u32| Place {
        profile: first.id,
        start: *start,
    };
    if found.iter().filter(|p| p.profile == first.id).count() >= first.most {
        return false;
    }
    let Some(decoders) = decoders.checked_sub(first.decoders) else {
        return false;
    };
    let mut starts: Vec<&u32> = first.starts.iter().filter(|s| **s < 32).collect();
    starts.sort_by_key(|start| !there.contains(&place(start)));
    for start in starts {
        let slices = ((1_u64 << first.size.min(32)) - 1) << start;
        if slices & taken != 0 {
            continue;
        }
        found.push(place(start));
        if fill(rest, there, (taken | slices, decoders), found) {
            return true;
        }
        found.pop();
    }
    false
}

/// The name of a profile, as NVIDIA writes it: compute slices and memory. The memory is a number of eighths of the
/// GPU's memory, in whole gigabytes.
#[must_use]
pub fn profile_name(slices: u32, bytes: u64, whole: u64) -> String {
    const GIB: u64 = 1 << 30;
    let eighths = (bytes * 8).div_ceil(whole.max(1));
    let gigabytes = whole.div_ceil(GIB);
    let memory = (eighths * gigabytes * 2 + 8) / 16;
    format!("{slices}g.{memory}gb")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the MIG user guide for GPUs with eight memory slices.
    fn profiles() -> Vec<Profile> {
        [
            ("1g.10gb", 19, 1, &[0, 1, 2, 3, 4, 5, 6][..]),
            ("1g.10gb+me", 20, 1, &[0, 1, 2, 3, 4, 5, 6]),
            ("1g.20gb", 15, 2, &[0, 2, 4, 6]),
            ("2g.20gb", 14, 2, &[0, 2, 4]),
            ("3g.40gb", 9, 4, &[0, 4]),
            ("4g.40gb", 5, 4, &[0]),
            ("7g.80gb", 0, 8, &[0]),
        ]
        .map(|(name, id, size, starts)| Profile {
            name: name.to_owned(),
            id,
            size,
            starts: starts.to_vec(),
            most: if id == 20 { 1 } else { 7 },
            decoders: name[..1].parse().expect("slices"),
        })
        .to_vec()
    }

    fn fits(text: &str) -> Result<Vec<u32>, NoRoom> {
        let layout = text.parse().expect(text);
        let places = places(&profiles(), &layout, &[])?;
        Ok(places.iter().map(|p| p.start).collect())
    }

    #[test]
    fn layouts_of_the_guide_fit_and_others_do_not() {
        for (text, starts) in [
            ("3g.40gb+2g.20gb+1g.10gb", vec![0, 4, 6]),
            (
                "1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb",
                (0..7).collect(),
            ),
            ("4g.40gb+3g.40gb", vec![0, 4]),
            ("3g.40gb+3g.40gb", vec![0, 4]),
            // A 4g has only one place, so a 3g that can go elsewhere leaves it free.
            ("3g.40gb+4g.40gb", vec![4, 0]),
            ("2g.20gb+2g.20gb+2g.20gb+1g.10gb", vec![0, 2, 4, 6]),
            ("7g.80gb", vec![0]),
            ("1g.10gb+me+1g.10gb", vec![0, 1]),
        ] {
            let mut found = fits(text).expect(text);
            let mut wanted = starts;
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{text}");
        }
        for text in [
            "4g.40gb+4g.40gb",
            "7g.80gb+1g.10gb",
            "1g.10gb+me+1g.10gb+me",
            "3g.40gb+3g.40gb+1g.10gb",
        ] {
            assert!(fits(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_fits_is_said() {
        let none = fits("3g.40gb+3g.40gb+1g.10gb").expect_err("nine slices");
        assert_eq!(none.fits.to_string(), "3g.40gb+3g.40gb");
        let text = none.to_string();
        assert!(
            text.contains("7 x 1g.10gb") && text.contains("2 x 3g.40gb"),
            "{text}"
        );
        let none = fits("5g.50gb").expect_err("no such profile");
        assert!(none.to_string().contains("no profile 5g.50gb"), "{none}");
        for text in ["", "3g", "all", "3g.40gb+", "g.gb", "me", "3g.40gb+x"] {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
        for text in ["1g.24gb-me+2g.48gb+gfx", "1g.24gb+me.all"] {
            let layout: Layout = text.parse().expect(text);
            assert_eq!(layout.to_string(), text);
        }
        assert!("off".parse::<Layout>().expect("a word").is_off());
    }

    #[test]
    fn instances_that_are_there_keep_their_places() {
        let there = [
            Place {
                profile: 9,
                start: 4,
            },
            Place {
                profile: 14,
                start: 2,
            },
        ];
        let layout = "2g.20gb+3g.40gb+1g.10gb".parse().expect("a layout");
        let found = places(&profiles(), &layout, &there).expect("fits");
        assert!(there.iter().all(|p| found.contains(p)), "{found:?}");
    }

    #[test]
    fn profiles_are_named_as_nvidia_does() {
        let mib = |n: u64| n << 20;
        for (slices, bytes, whole, name) in [
            (1, 9_728, 81_920, "1g.10gb"),
            (1, 19_968, 81_920, "1g.20gb"),
            (3, 40_192, 81_920, "3g.40gb"),
            (7, 80_640, 81_920, "7g.80gb"),
            (2, 20_096, 81_559, "2g.20gb"),
            (1, 16_384, 143_771, "1g.18gb"),
            (2, 33_280, 143_771, "2g.35gb"),
            (3, 71_476, 143_771, "3g.71gb"),
            (7, 143_360, 143_771, "7g.141gb"),
            (1, 24_166, 97_887, "1g.24gb"),
            (2, 48_538, 97_887, "2g.48gb"),
            (4, 97_280, 97_887, "4g.96gb"),
        ] {
            assert_eq!(profile_name(slices, mib(bytes), mib(whole)), name);
        }
    }
}
