//! The program's tests, most on simulated workstations, in one binary: linked once, and while some wait others run.
//! `cargo test --test workstation mig::` runs those of one file.

mod admin;
mod claims;
mod cli;
mod containers;
mod deaths;
mod faults;
mod figures;
mod history;
mod laboratory;
mod mig;
mod notebooks;
mod offload;
mod outside;
mod overuse;
mod programs;
mod reclaim;
mod screen;
mod security;
mod sharing;
mod slurm;
mod stages;
mod strict;
mod support;
mod systemd;
