//! Classes of work on the command line.

use clap::ValueEnum;
use gshare_core::Class;

/// Reads a class by its word.
#[derive(Clone)]
pub(super) struct ClassParser;

/// The words of [`Class`], so that help and completions list them.
#[derive(Clone, Copy)]
struct ClassWord(Class);

impl ValueEnum for ClassWord {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [ClassWord; 3] = [
            ClassWord(Class::Interactive),
            ClassWord(Class::Batch),
            ClassWord(Class::Inference),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

impl clap::builder::TypedValueParser for ClassParser {
    type Value = Class;

    fn parse_ref(
        &self,
        cmd: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Class, clap::Error> {
        let words = clap::builder::EnumValueParser::<ClassWord>::new();
        words.parse_ref(cmd, arg, value).map(|word| word.0)
    }

    fn possible_values(
        &self,
    ) -> Option<Box<dyn Iterator<Item = clap::builder::PossibleValue> + '_>> {
        let words = ClassWord::value_variants().iter();
        Some(Box::new(words.filter_map(ValueEnum::to_possible_value)))
    }
}
