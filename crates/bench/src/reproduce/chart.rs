//! Bar charts as SVG.
//!
//! Invariant: a bar that is higher than its panel is cut; its number is not.

use std::fmt::Write;

/// Height of a panel.
const HEIGHT: u32 = 160;
/// From panel to panel, from group to group, from bar to bar; width of a bar.
const GAP: u32 = 60;
const GROUP: u32 = 98;
const STEP: u32 = 26;
const BAR: u32 = 22;
const COLORS: [&str; 3] = ["#2a6f97", "#adb5bd", "#d98e04"];

/// One panel.
pub struct Panel {
    /// Above it.
    pub title: String,
    /// The value that fills it.
    pub full: f64,
    /// A label, and a value of each series that has one.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

/// The panels in rows of `columns`, below a legend of the series.
pub fn svg(series: &[&str], columns: usize, panels: &[Panel]) -> String {
    let groups = panels.iter().map(|panel| panel.groups.len()).max().unwrap_or(0) as u32;
    let (wide, high) = (groups * GROUP + 30, HEIGHT + GAP);
    let rows = panels.len().div_ceil(columns.max(1)) as u32;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        columns as u32 * wide,
        40 + rows * high
    );
    for (n, name) in series.iter().enumerate() {
        let (x, color) = (20 + 180 * n, COLORS[n % COLORS.len()]);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"22\">{name}</text>",
            x + 18
        );
    }
    for (n, panel) in panels.iter().enumerate() {
        let (column, row) = ((n % columns) as u32, (n / columns) as u32);
        panel.draw(&mut svg, 20 + wide * column, 60 + high * row);
    }
    svg + "</svg>\n"
}

impl Panel {
    fn draw(&self, svg: &mut String, x: u32, y: u32) {
        let title = &self.title;
        let _ =
            writeln!(svg, "<text x=\"{x}\" y=\"{}\" font-weight=\"bold\">{title}</text>", y - 6);
        for (n, (label, values)) in self.groups.iter().enumerate() {
            let left = x + GROUP * n as u32;
            let below = y + HEIGHT + 14;
            let _ =
                writeln!(svg, "<text x=\"{left}\" y=\"{below}\" font-size=\"10\">{label}</text>");
            for (n, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let high = ((value / self.full).clamp(0.0, 1.0) * f64::from(HEIGHT)) as u32;
                let (bar, top) = (left + STEP * n as u32, y + HEIGHT - high);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{bar}\" y=\"{top}\" width=\"{BAR}\" height=\"{high}\" fill=\"{}\"/>\
                     <text x=\"{bar}\" y=\"{}\" font-size=\"9\">{value:.2}</text>",
                    COLORS[n % COLORS.len()],
                    top.saturating_sub(2)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_bar_and_one_beyond_its_panel_is_cut() {
        let groups = vec![
            ("a".to_owned(), vec![Some(1.0), None]),
            ("b".to_owned(), vec![Some(9.0), Some(2.0)]),
        ];
        let panel = Panel { title: "title".to_owned(), full: 4.0, groups };
        let svg = svg(&["one", "two"], 1, &[panel]);
        assert_eq!(svg.matches("width=\"22\"").count(), 3);
        assert!(svg.contains("height=\"160\"") && svg.contains(">9.00<"), "{svg}");
        assert!(svg.contains("height=\"40\"") && svg.contains(">one<"), "{svg}");
    }
}
