//! Effect of sharing on recorded runs, in words.

use std::time::Duration;

use gshare_core::units::{many, show_duration};
use gshare_proto::figures::hours;
use gshare_proto::{Fared, ReportView, UserFared};

/// Its heading.
pub(super) const TITLE: &str = "What sharing would have done";

/// `3`, or `3 to 12` if the two ways to share differ.
fn range<T: Copy>([least, most]: [T; 2], show: impl Fn(T) -> String) -> String {
    let (least, most) = (show(least), show(most));
    match least == most {
        true => least,
        false => format!("{least} to {most}"),
    }
}

/// Gains and harms with their ranges, or why they are unknown. Empty if no program ran without limits.
pub(super) fn sentences(report: &ReportView) -> Vec<String> {
    if let Some(why) = &report.not_played {
        return vec![format!("Not known yet: {why}.")];
    }
    let Some(sharing) = &report.sharing else {
        return Vec::new();
    };
    let Fared { runs, waited, .. } = sharing.total;
    let [held, longest, refused, limited] = cells(&sharing.total);
    let longest = match waited[1] {
        0 => String::new(),
        _ => format!(", the longest for {longest}"),
    };
    let older = match sharing.left_out {
        0 => "",
        n => &format!(
            " The simulation leaves out {}, to limit its length.",
            many(n as usize, "older run")
        ),
    };
    vec![
        format!(
            "Suppose each program had claimed its own peak plus 10 %. Then {} would have held {held} GPU h \
             instead of {}. Of the runs, {} would have waited{longest}, {refused} would have been refused, and \
             {limited} would have reached a memory limit.",
            many(runs as usize, "run"),
            hours(sharing.occupied_gpu_s),
            range(waited, |n| n.to_string()),
        ),
        format!(
            "Of each range, the smaller figure assumes that runs share compute freely. The larger one assumes that \
             each run reserves the GPU time that it used, and claims the peak memory of its program's earlier runs plus 10 %.{older}"
        ),
    ]
}

/// GPU hours held, the longest wait, refused and at a limit.
fn cells(fared: &Fared) -> [String; 4] {
    let wait = |s: f64| match s > 0.0 {
        true => show_duration(Duration::from_secs_f64(s)),
        false => "0".to_owned(),
    };
    let count = |n: u32| n.to_string();
    [
        range(fared.held_gpu_s, hours),
        range(fared.longest_s, wait),
        range(fared.refused, count),
        range(fared.limited, count),
    ]
}

/// The columns after the user's name.
pub(super) const COLUMNS: [&str; 6] = ["RUNS", "HELD", "WAITED", "LONGEST", "REFUSED", "AT LIMIT"];

/// Users whose runs would have waited, been refused or reached a limit, with the cells of [`COLUMNS`].
pub(super) fn rows(report: &ReportView) -> impl Iterator<Item = (&str, [String; 6])> {
    let users = report.sharing.iter().flat_map(|s| &s.users);
    users.filter(|u| u.fared.harmed() > 0).map(|user| {
        let UserFared { user, fared, .. } = user;
        let [held, longest, refused, limited] = cells(fared);
        let waited = range(fared.waited, |n| n.to_string());
        let runs = fared.runs.to_string();
        (
            user.as_str(),
            [runs, held, waited, longest, refused, limited],
        )
    })
}

#[cfg(test)]
pub(super) fn example() -> gshare_proto::SharingView {
    let ada = Fared {
        runs: 9,
        held_gpu_s: [3600.0, 9000.0],
        waited: [0, 2],
        longest_s: [0.0, 5400.0],
        limited: [0, 1],
        ..Fared::default()
    };
    let mut total = ada;
    total.add(&Fared {
        runs: 5,
        held_gpu_s: [1800.0, 1800.0],
        refused: [1, 1],
        ..Fared::default()
    });
    let user = |uid, user: &str, fared| UserFared {
        uid,
        user: user.to_owned(),
        fared,
    };
    gshare_proto::SharingView {
        occupied_gpu_s: 36_000.0,
        left_out: 0,
        total,
        users: vec![
            user(0, "ada", ada),
            user(
                7,
                "bob & co",
                Fared {
                    runs: 5,
                    ..Fared::default()
                },
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gain_harm_and_assumption_stand_in_one_line_with_a_range() {
        let mut report = ReportView {
            sharing: Some(example()),
            ..ReportView::default()
        };
        assert_eq!(
            sentences(&report)[0],
            "Suppose each program had claimed its own peak plus 10 %. Then 14 runs would have held 1.5 to 3.0 GPU h \
             instead of 10.0. Of the runs, 0 to 2 would have waited, the longest for 0 to 1h 30m, 1 would have been \
             refused, and 0 to 1 would have \
             reached a memory limit."
        );
        let rows: Vec<_> = rows(&report).collect();
        assert_eq!(
            rows,
            [(
                "ada",
                ["9", "1.0 to 2.5", "0 to 2", "0 to 1h 30m", "0", "0 to 1"].map(str::to_owned)
            )]
        );
        if let Some(sharing) = &mut report.sharing {
            sharing.left_out = 7;
        }
        assert!(
            sentences(&report)[1]
                .ends_with(" The simulation leaves out 7 older runs, to limit its length.")
        );
        report.not_played = Some("there is less than a day of records".to_owned());
        assert_eq!(
            sentences(&report),
            ["Not known yet: there is less than a day of records."]
        );
        assert!(sentences(&ReportView::default()).is_empty());
    }
}
