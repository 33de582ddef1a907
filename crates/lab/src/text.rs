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

/// A number with about three significant digits.
pub(crate) fn short(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 || size == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{number:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Text, escaped for SVG and HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
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
