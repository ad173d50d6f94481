//! The table of bypasses in docs/enforcement.md is the list of these tests.

use std::collections::BTreeSet;

#[test]
fn the_documented_ways_around_are_those_that_are_tried() {
    let page = include_str!("../../docs/enforcement.md");
    let section = page
        .split("## Ways around strict caps")
        .nth(1)
        .expect("the page has the section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let documented: BTreeSet<&str> = section
        .lines()
        .filter(|line| {
            line.starts_with("| ") && !line.starts_with("| way") && !line.starts_with("|-")
        })
        .filter_map(|line| line.trim_end_matches(" |").rsplit(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`'))
        .filter(|name| !name.is_empty())
        .collect();
    let sources = [
        include_str!("bypass.rs"),
        include_str!("detected.rs"),
        include_str!("driver.rs"),
        include_str!("environment.rs"),
        include_str!("hostile.rs"),
        include_str!("launch.rs"),
    ];
    let tests_of = |sources: &[&'static str]| -> BTreeSet<&str> {
        let rests = sources.iter().flat_map(|s| s.split("#[test]\nfn ").skip(1));
        rests.filter_map(|rest| rest.split('(').next()).collect()
    };
    let tests = tests_of(&sources);
    let unknown: Vec<_> = documented.difference(&tests).collect();
    assert!(unknown.is_empty(), "documented but not tried: {unknown:?}");
    let around = [
        include_str!("bypass.rs"),
        include_str!("detected.rs"),
        include_str!("driver.rs"),
        include_str!("hostile.rs"),
    ];
    let bypass = tests_of(&around);
    let silent: Vec<_> = bypass.difference(&documented).collect();
    assert!(silent.is_empty(), "tried but not documented: {silent:?}");
}
