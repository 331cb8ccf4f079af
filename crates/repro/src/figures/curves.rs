//! Line charts as SVG.
//!
//! Invariant: a line that leaves its panel is cut at the edge.

use bench::{Res, failed};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Size of a panel, and of the legend above all.
const SIZE: (u32, u32) = (480, 280);
const LEGEND: u32 = 36;
const COLORS: [RGBColor; 5] = [
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0xad, 0xb5, 0xbd),
    RGBColor(0xd9, 0x8e, 0x04),
    RGBColor(0x2a, 0x6f, 0x97),
    RGBColor(0xc1, 0x12, 0x1f),
];
const FONT: &str = "sans-serif";

/// One panel: lines over the same seconds.
pub struct Curves {
    /// Above it.
    pub title: String,
    /// The value at its top.
    pub full: f64,
    /// A line for each series that has one: a value for each second.
    pub lines: Vec<Option<Vec<f64>>>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The panels in rows of two, below a legend of the series.
///
/// # Errors
/// The library cannot draw it.
pub fn svg(series: &[&str], panels: &[Curves]) -> Res<String> {
    let rows = panels.len().div_ceil(2);
    let size = (2 * SIZE.0, LEGEND + rows as u32 * SIZE.1);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&root, series, rows, panels).or_else(|error| failed("drawing", error))?;
    drop(root);
    Ok(svg)
}

fn draw(root: &Area<'_>, series: &[&str], rows: usize, panels: &[Curves]) -> Drawn {
    root.fill(&WHITE)?;
    let (legend, below) = root.split_vertically(LEGEND);
    for (n, (name, color)) in series.iter().zip(COLORS).enumerate() {
        let x = 20 + 180 * n as i32;
        legend.draw(&Rectangle::new([(x, 12), (x + 12, 24)], color.filled()))?;
        legend.draw(&Text::new(*name, (x + 18, 12), (FONT, 15)))?;
    }
    for (area, panel) in below.split_evenly((rows, 2)).iter().zip(panels) {
        panel.draw(area)?;
    }
    root.present()
}

impl Curves {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let seconds = self.lines.iter().flatten().map(Vec::len).max().unwrap_or(1);
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .caption(&self.title, (FONT, 16))
            .set_label_area_size(LabelAreaPosition::Left, 40)
            .set_label_area_size(LabelAreaPosition::Bottom, 24)
            .build_cartesian_2d(0.0..seconds as f64, 0.0..self.full)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .x_labels(9)
            .y_labels(5)
            .label_style((FONT, 13))
            .draw()?;
        for (line, color) in self.lines.iter().zip(COLORS) {
            let Some(line) = line else { continue };
            let point = |(second, value): (usize, &f64)| (second as f64, value.min(self.full));
            let points: Vec<(f64, f64)> = line.iter().enumerate().map(point).collect();
            chart.draw_series([PathElement::new(points, color.stroke_width(2))])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_line_cut_at_the_edge() {
        let lines = vec![Some(vec![1.0, 2.0, 99.0]), None, Some(vec![0.0, 1.0, 2.0])];
        let panel = Curves { title: "title".to_owned(), full: 4.0, lines };
        let svg = svg(&["one", "two", "three"], &[panel]).unwrap();
        let drawn = |color: RGBColor| {
            let stroke = format!("stroke=\"#{:02X}{:02X}{:02X}\"", color.0, color.1, color.2);
            let lines = svg.lines();
            lines.filter(|line| line.starts_with("<polyline") && line.contains(&stroke)).count()
        };
        assert_eq!([drawn(COLORS[0]), drawn(COLORS[1]), drawn(COLORS[2])], [1, 0, 1], "{svg}");
        for text in ["one", "two", "three", "title"] {
            assert!(svg.lines().any(|line| line == text), "{text}: {svg}");
        }
    }
}
