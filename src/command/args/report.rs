//! Arguments of `gshare report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gshare_config::value;

/// `gshare report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Start of the period, this long ago: 5w, 3d, 12h, 30m
    #[arg(long, value_name = "TIME", default_value = "1w", value_parser = back)]
    pub since: Duration,
    /// End of the period, this long ago [default: now]
    #[arg(long, value_name = "TIME", value_parser = back)]
    pub until: Option<Duration>,
    /// Only the use of this user
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Only your own use
    #[arg(long, conflicts_with_all = ["user", "merge"])]
    pub mine: bool,
    /// Print all that gshare stores about you: a line of JSON for each row of its tables
    #[arg(long, requires = "mine", conflicts_with_all = ["json", "csv", "html", "text", "until"])]
    pub raw: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values: a line per user, and one with the totals
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write one HTML page without scripts, with aliases instead of user names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    pub html: Option<PathBuf>,
    /// Print at most 25 lines for a mail, with aliases instead of user names
    #[arg(long, conflicts_with_all = ["json", "csv", "html"])]
    pub text: bool,
    /// Add up reports of several machines. Write each report on its machine: gshare report --json > HOST.json
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["since", "until", "user"])]
    pub merge: Vec<PathBuf>,
    /// Show the names of users and of their programs in --html or --text
    #[arg(long)]
    pub names: bool,
}

/// A time back from now; weeks are known here.
fn back(text: &str) -> Result<Duration, String> {
    const WEEK: f64 = 7.0 * 86_400.0;
    const WRITE: &str = "write for example 5w, 3d, 12h or 30m";
    let weeks = text.trim().strip_suffix(['w', 'W']);
    match weeks.map(str::parse::<f64>) {
        Some(Ok(n)) if n > 0.0 && n <= 200.0 => Ok(Duration::from_secs_f64(n * WEEK)),
        Some(Ok(n)) if n > 200.0 => Err("at most 200w; the history goes back two years".to_owned()),
        Some(_) => Err(WRITE.to_owned()),
        None => value::time(text).map_err(|_| WRITE.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_are_a_time() {
        assert_eq!(back("5w"), Ok(Duration::from_secs(5 * 7 * 86_400)));
        assert_eq!(back("3d"), Ok(Duration::from_secs(3 * 86_400)));
        assert!(back("w").is_err() && back("-1w").is_err() && back("0").is_err());
        assert!(back("nanw").is_err() && back("infw").is_err());
        assert!(back("300w").is_err_and(|e| e.contains("at most 200w")));
        assert!(back("5x").is_err_and(|e| e.contains("5w, 3d")));
    }
}
