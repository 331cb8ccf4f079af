//! JSON as text, written piece by piece: for reports of crates that parse none.

use std::fmt::Write;

/// A text of JSON that grows. Commas are its own business; brackets are the caller's.
#[derive(Default, Debug)]
pub struct Json(String);

impl Json {
    /// Begins an object or a list.
    pub fn open(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    /// Ends an object or a list.
    pub fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    /// The next item of a list follows.
    pub fn item(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with(['{', '[', ':']) {
            self.0.push(',');
        }
    }

    /// The value of the field `key` follows.
    pub fn key(&mut self, key: &str) {
        self.item();
        self.string(key);
        self.0.push(':');
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, value: &str) {
        self.0.push_str(value);
    }

    /// A field with a number.
    pub fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.raw(&value.to_string());
    }

    /// A field with true or false.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.raw(if value { "true" } else { "false" });
    }

    /// A field with a text.
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.string(value);
    }

    /// A field with a list; `each` writes one item.
    pub fn list<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Json, T),
    ) {
        self.key(key);
        self.open('[');
        for item in items {
            self.item();
            each(self, item);
        }
        self.close(']');
    }

    /// A text, quoted and escaped.
    pub fn string(&mut self, value: &str) {
        self.0.push('"');
        for c in value.chars() {
            match c {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                c if (c as u32) < 0x20 => {
                    // Writing to a string cannot fail.
                    let _ = write!(self.0, "\\u{:04x}", c as u32);
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_separated_and_escaped() {
        let mut json = Json::default();
        json.open('{');
        json.text("a", "x\"\\\n");
        json.list("b", [1, 2], |json, number| json.raw(&number.to_string()));
        json.list("c", [[3], [4]], |json, inner| {
            json.open('{');
            json.list("d", inner, |json, number| json.raw(&number.to_string()));
            json.close('}');
        });
        json.flag("e", true);
        json.close('}');
        let expected = r#"{"a":"x\"\\\u000a","b":[1,2],"c":[{"d":[3]},{"d":[4]}],"e":true}"#;
        assert_eq!(json.into_text(), expected);
    }
}
