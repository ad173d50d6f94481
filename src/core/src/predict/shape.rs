//! Normalizes commands: program, script, and the shape of the arguments. Numbers become features, paths are reduced to
//! their last part without numbers, everything else is kept as words.

/// A normalized command.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Program without its directory, for example `python`.
    pub program: String,
    /// Script, module, or the program itself, for example `train.py`.
    pub script: String,
    /// Arguments without their numbers, sorted: `--amp --data=part-#.bin`.
    pub words: String,
    /// Numbers in the arguments with their names, sorted by name.
    pub numbers: Vec<(String, f64)>,
}

/// Maximum length of the words, in bytes.
const LONGEST: usize = 400;
/// Maximum number of numbers.
const MOST: usize = 24;
/// Programs whose first argument is a script.
const RUNNERS: [&str; 11] = [
    "python", "python2", "python3", "pypy3", "bash", "sh", "julia", "Rscript", "perl", "ruby",
    "node",
];
/// Programs that start other programs: the command follows.
const STARTERS: [&str; 10] = [
    "env", "nice", "nohup", "time", "stdbuf", "srun", "taskset", "numactl", "ionice", "exec",
];

fn base(path: &str) -> &str {
    path.rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(path)
}

/// Treats `python3.11` as `python3`.
fn runner(word: &str) -> Option<&'static str> {
    let name = base(word);
    let short = name.split_once('.').map_or(name, |(head, _)| head);
    RUNNERS.into_iter().find(|r| *r == short)
}

fn number(text: &str) -> Option<f64> {
    let plain = text.trim();
    let first = plain.chars().next()?;
    if !(first.is_ascii_digit() || matches!(first, '-' | '+' | '.')) {
        return None;
    }
    let (digits, unit) = match plain.as_bytes().last()? {
        b'k' | b'K' => (&plain[..plain.len() - 1], 1e3),
        b'm' | b'M' => (&plain[..plain.len() - 1], 1e6),
        b'g' | b'G' => (&plain[..plain.len() - 1], 1e9),
        _ => (plain, 1.0),
    };
    digits
        .parse::<f64>()
        .ok()
        .filter(|n| n.is_finite())
        .map(|n| n * unit)
}

/// The last part of a path, without numbers.
fn reduced(text: &str) -> String {
    if !(text.contains('/') || text.starts_with('~')) {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in base(text).chars() {
        if c.is_ascii_digit() {
            if !out.ends_with('#') {
                out.push('#');
            }
        } else {
            out.push(c);
        }
    }
    out
}

impl Shape {
    /// Normalizes a command line.
    #[must_use]
    pub fn of(command: &[String]) -> Self {
        let mut words = command.iter().map(String::as_str).peekable();
        // Skip programs that only start the command, and environment variables.
        while words.peek().is_some_and(|w| {
            STARTERS.contains(&base(w))
                || (w.contains('=') && !w.starts_with('-') && !w.contains('/'))
        }) {
            words.next();
        }
        let Some(program) = words.next() else {
            return Self::default();
        };
        let program_name = runner(program).unwrap_or_else(|| base(program));
        let mut script = program_name.to_owned();
        if runner(program).is_some()
            || matches!(program_name, "torchrun" | "accelerate" | "uv" | "deepspeed")
        {
            while let Some(word) = words.peek() {
                match *word {
                    "-m" => {
                        words.next();
                        script = words.next().unwrap_or("-m").to_owned();
                        break;
                    }
                    "-c" => {
                        words.next();
                        words.next();
                        "-c".clone_into(&mut script);
                        break;
                    }
                    "run" | "launch" => {
                        words.next();
                    }
                    w if w.starts_with('-') => {
                        words.next();
                    }
                    w if number(w).is_some() => {
                        words.next();
                    }
                    w if runner(w).is_some() => {
                        words.next();
                    }
                    w => {
                        base(w).clone_into(&mut script);
                        words.next();
                        break;
                    }
                }
            }
        }
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        let mut place = 0;
        while let Some(word) = words.next() {
            let flag = word.starts_with('-') && number(word).is_none();
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key.trim_start_matches('-').to_owned(), Some(value)),
                None if flag => {
                    let follows = |next: &&str| !next.starts_with('-') || number(next).is_some();
                    (
                        word.trim_start_matches('-').to_owned(),
                        words.next_if(follows),
                    )
                }
                None => {
                    place += 1;
                    (format!("argument {place}"), Some(word))
                }
            };
            let key = key.replace('_', "-");
            match value {
                Some(value) => match number(value) {
                    Some(n) => {
                        texts.push(format!("{key}=#"));
                        numbers.push((key, n));
                    }
                    None => texts.push(format!("{key}={}", reduced(value))),
                },
                None => texts.push(key),
            }
        }
        texts.sort();
        numbers.sort_by(|a: &(String, f64), b| a.0.cmp(&b.0));
        numbers.dedup_by(|b, a| a.0 == b.0);
        numbers.truncate(MOST);
        let mut text = texts.join(" ");
        if text.len() > LONGEST {
            let cut = (0..=LONGEST).rev().find(|i| text.is_char_boundary(*i));
            text.truncate(cut.unwrap_or(0));
        }
        Self {
            program: program_name.to_owned(),
            script,
            words: text,
            numbers,
        }
    }

    /// The number with a name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        let found = self.numbers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    }
}
