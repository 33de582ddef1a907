//! Numbers and text, formatted for people.

/// A count with commas between thousands.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A fraction as a percentage.
pub(crate) fn percent(fraction: f64) -> String {
    let value = 100.0 * fraction;
    match value {
        value if value == 0.0 || value >= 0.05 => format!("{value:.1}%"),
        value => format!("{value:.3}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(grouped),
            ["0", "12", "123", "1,234", "1,234,567"]
        );
    }
}
