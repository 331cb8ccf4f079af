//! Bar charts as SVG.
//!
//! Invariant: a bar that is higher than its panel is cut; its number is not.

use bench::{Res, failed};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Size of a panel, but for what a group adds to its width, and of the legend above all.
const HEIGHT: u32 = 230;
const WIDTH: u32 = 70;
const GROUP: u32 = 98;
const LEGEND: u32 = 36;
/// Share of a group that its bars take, and share of a bar's place that it fills.
const BARS: f64 = 0.8;
const FILLED: f64 = 0.85;
const COLORS: [RGBColor; 4] = [
    RGBColor(0x2a, 0x6f, 0x97),
    RGBColor(0xad, 0xb5, 0xbd),
    RGBColor(0xd9, 0x8e, 0x04),
    RGBColor(0x6b, 0x8e, 0x4e),
];
const FONT: &str = "sans-serif";

/// One panel.
pub struct Panel {
    /// Above it.
    pub title: String,
    /// The value that fills it.
    pub full: f64,
    /// A label, and a value of each series that has one.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The panels in rows of `columns`, below a legend of the series.
///
/// # Errors
/// The library cannot draw it.
pub fn svg(series: &[&str], columns: usize, panels: &[Panel]) -> Res<String> {
    let groups = panels.iter().map(|panel| panel.groups.len()).max().unwrap_or(0) as u32;
    let rows = panels.len().div_ceil(columns);
    let size = (columns as u32 * (WIDTH + groups * GROUP), LEGEND + rows as u32 * HEIGHT);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&root, series, (rows, columns), panels).or_else(|error| failed("drawing", error))?;
    drop(root);
    Ok(svg)
}

fn draw(root: &Area<'_>, series: &[&str], rows: (usize, usize), panels: &[Panel]) -> Drawn {
    root.fill(&WHITE)?;
    let (legend, below) = root.split_vertically(LEGEND);
    for (n, (name, color)) in series.iter().zip(COLORS.iter().cycle()).enumerate() {
        let x = 20 + 180 * n as i32;
        legend.draw(&Rectangle::new([(x, 12), (x + 12, 24)], color.filled()))?;
        legend.draw(&Text::new(*name, (x + 18, 12), (FONT, 15)))?;
    }
    for (area, panel) in below.split_evenly(rows).iter().zip(panels) {
        panel.draw(area)?;
    }
    root.present()
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        // A group's middle is a whole number.
        let across = -0.5..self.groups.len() as f64 - 0.5;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .caption(&self.title, (FONT, 16))
            // Room for the number of a bar that is as high as the panel.
            .set_label_area_size(LabelAreaPosition::Top, 12)
            .set_label_area_size(LabelAreaPosition::Left, 30)
            .set_label_area_size(LabelAreaPosition::Bottom, 20)
            .build_cartesian_2d(across, 0.0..self.full)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .y_labels(4)
            .x_labels(0)
            .label_style((FONT, 13))
            .draw()?;
        let label = TextStyle::from((FONT, 13)).pos(Pos::new(HPos::Center, VPos::Top));
        let number = TextStyle::from((FONT, 12)).pos(Pos::new(HPos::Center, VPos::Bottom));
        for (group, (name, values)) in self.groups.iter().enumerate() {
            let below =
                EmptyElement::at((group as f64, 0.0)) + Text::new(name.clone(), (0, 5), &label);
            chart.draw_series([below])?;
            let each = BARS / values.len() as f64;
            for (n, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let middle = group as f64 + (n as f64 + 0.5) * each - BARS / 2.0;
                let (half, top) = (each * FILLED / 2.0, value.clamp(0.0, self.full));
                let corners = [(middle - half, 0.0), (middle + half, top)];
                let bar = Rectangle::new(corners, COLORS[n % COLORS.len()].filled());
                chart.draw_series([bar])?;
                chart.draw_series([Text::new(format!("{value:.2}"), (middle, top), &number)])?;
            }
        }
        Ok(())
    }
}

/// Heights of the bars, for tests: of rectangles with a series' color, but for the legend's.
#[cfg(test)]
pub fn bars(svg: &str, series: usize) -> Vec<u32> {
    let mut heights = Vec::new();
    for line in svg.lines().filter(|line| line.starts_with("<rect")) {
        let colored = |color: &RGBColor| {
            line.contains(&format!("fill=\"#{:02X}{:02X}{:02X}\"", color.0, color.1, color.2))
        };
        if COLORS.iter().any(colored) {
            let height = line.split("height=\"").nth(1).and_then(|rest| rest.split('"').next());
            heights.push(height.unwrap().parse().unwrap());
        }
    }
    heights.split_off(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_bar_clipped_to_its_panel() {
        let groups = vec![
            ("a".to_owned(), vec![Some(1.0), None]),
            ("b".to_owned(), vec![Some(9.0), Some(2.0)]),
        ];
        let panel = Panel { title: "title".to_owned(), full: 4.0, groups };
        let svg = svg(&["one", "two"], 1, &[panel]).unwrap();
        let heights = bars(&svg, 2);
        let [low, cut, half] = heights[..] else { panic!("{heights:?}: {svg}") };
        assert!(low.abs_diff(cut / 4) <= 1 && half.abs_diff(cut / 2) <= 1, "{heights:?}");
        assert!(cut > HEIGHT / 2 && cut < HEIGHT, "{heights:?}");
        for text in ["one", "two", "title", "a", "b", "1.00", "9.00", "2.00"] {
            assert!(svg.lines().any(|line| line == text), "{text}: {svg}");
        }
    }
}
