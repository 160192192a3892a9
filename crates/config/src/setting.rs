//! The definition of a setting: its name, its values, and when a change takes effect.

use crate::size;

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number within bounds, both included.
    Number(u64, u64),
    /// A number of bytes within bounds, both included, or a text with a unit: `"64KiB"`, `"10 GB"`,
    /// `"1.5 GiB"`.
    Bytes(u64, u64),
    /// An address with a port, or a name with a port that the caller's system resolves: `"127.0.0.1:8000"`,
    /// `"localhost:8000"`.
    Address,
    /// An address or a name with a port, as in `Address`, or an empty text for no address.
    OptionalAddress,
    /// Any text.
    Text,
    /// A text whose length in bytes is within bounds, both included.
    TextBytes(u64, u64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts. In a variable or a flag, commas separate them.
    List,
    /// A date or a time with its offset (RFC 3339).
    Time,
    /// The hash of a key: `sha256:` and hexadecimal digits. It is never printed, because it may be the key itself by
    /// mistake.
    Hash,
}

/// When a change of a setting takes effect, and whether its value may be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A change needs a restart.
    Fixed,
    /// A change takes effect on SIGHUP: the reload passes it on.
    Live,
    /// As `Live`, and the value is never printed.
    Secret,
}

/// A setting. Its name ends with its unit, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Section and key, separated by a dot.
    pub key: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// The default, as TOML.
    pub default: &'static str,
    /// One sentence about what it does.
    pub doc: &'static str,
    /// A change takes effect on SIGHUP; others need a restart.
    pub reload: bool,
    /// The value is never printed.
    pub secret: bool,
    /// The effect of exceeding it, if it is a limit.
    pub limit: Option<Limit>,
}

/// The effect of exceeding a limit, and its metrics: for the documentation, in its markup.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The effect, with the code of the error; `the same` is as at the limit before.
    pub beyond: &'static str,
    /// The metrics of its use, or of how often it was exceeded. `L` is `throng_limited_total`, and `–` none.
    pub metrics: &'static str,
}

/// The `Option<Limit>` of a line in a table of settings.
macro_rules! limit {
    () => {
        None
    };
    ($beyond:literal, $metrics:literal) => {
        Some($crate::setting::Limit { beyond: $beyond, metrics: $metrics })
    };
}

pub(crate) use limit;

pub(crate) const TIB: u64 = 1 << 40;
pub(crate) const MANY: u64 = u32::MAX as u64;
pub(crate) const DAY: u64 = 86_400;
pub(crate) const TEN_YEARS: u64 = 3650 * DAY;

impl Setting {
    /// The environment variable of this setting.
    pub fn variable(&self) -> String {
        format!("THRONG_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// The section and the key.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.key.split_once('.').unwrap_or(("", self.key))
    }

    /// Describes the valid values, for people.
    pub fn valid_values(&self) -> String {
        self.kind.valid_values()
    }
}

impl Kind {
    /// Returns true if values of this kind are never printed.
    pub fn is_secret(self) -> bool {
        self == Kind::Hash
    }

    /// Describes the valid values, for people.
    pub fn valid_values(self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Number(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Bytes(min, max) => {
                let (min, max) = (size::shown(min), size::shown(max));
                format!("a size from {min} to {max}, like 65536, \"64KiB\" or \"10 MB\"")
            }
            Kind::Address => {
                "an address with a port, like \"127.0.0.1:8000\" or \"localhost:8000\"".into()
            }
            Kind::OptionalAddress => {
                "an address with a port, like \"127.0.0.1:8000\" or \"localhost:8000\", or \"\""
                    .into()
            }
            Kind::Text => "a text".into(),
            Kind::TextBytes(min, max) => format!("a text of {min} to {max} bytes"),
            Kind::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                format!("one of {}", words.join(", "))
            }
            Kind::List => "a list of texts, like [\"a\", \"b\"]".into(),
            Kind::Time => "a date or a time with its offset, like \"2031-01-01\" or \
                 \"2031-01-01T12:00:00Z\""
                .into(),
            Kind::Hash => {
                "the line that \"throng key new\" prints, \"sha256:\" and 64 hexadecimal digits"
                    .into()
            }
        }
    }
}
