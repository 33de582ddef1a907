//! The two aggregators.

use std::fmt;

/// An aggregator. Neither learns anything about a histogram as long as they do not collude.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The leader. It receives reports.
    Leader,
    /// The helper.
    Helper,
}

impl Role {
    /// Both, the leader first.
    pub const ALL: [Self; 2] = [Self::Leader, Self::Helper];

    /// The number of the role in messages (DAP, section Roles).
    pub const fn code(self) -> u8 {
        match self {
            Self::Leader => 2,
            Self::Helper => 3,
        }
    }

    /// The number of the role in the VDAF.
    pub const fn aggregator(self) -> usize {
        match self {
            Self::Leader => 0,
            Self::Helper => 1,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Helper => "helper",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
