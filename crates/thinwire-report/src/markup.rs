//! Text that goes into HTML and SVG.

/// `text` with what markup would take for its own written out, and what XML does not allow left out.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            _ if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {}
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn markup_in_a_text_stays_text() {
        assert_eq!(super::escape("<b a='1'>&\u{1}\"é"), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;é");
    }
}
