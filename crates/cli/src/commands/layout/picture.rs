//! The picture that `redbud layout --svg` draws: a file over its zones.

use std::fmt::Write;

use super::FileLayout;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const ROW: f64 = 34.0;
const TOP: f64 = 40.0;

/// One row for each zone that the file lies on, with the file's blocks where they lie between the
/// first and the last of them there. The colour goes from the beginning of the file (blue) to its
/// end (red).
pub fn svg(file: &FileLayout) -> String {
    let mut zones: Vec<u16> = file.segments.iter().filter_map(|segment| segment.pag).collect();
    zones.sort_unstable();
    zones.dedup();
    let height = TOP + ROW * zones.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<text x=\"10\" y=\"20\">{}: {} bytes, {} \
         segments</text>\n",
        LEFT + WIDTH + 20.0,
        escaped(&file.path),
        file.size,
        file.segments.iter().filter(|segment| segment.pag.is_some()).count(),
    );
    for (row, &zone) in zones.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let here = || file.segments.iter().filter(|segment| segment.pag == Some(zone));
        let address = |segment: &super::Segment| segment.address.unwrap_or(0);
        let from = here().map(address).min().unwrap_or(0);
        let to = here().map(|segment| address(segment) + segment.length).max().unwrap_or(1);
        let scale = WIDTH / (to - from).max(1) as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "<text x=\"10\" y=\"{}\">zone {zone}</text>\n<rect x=\"{LEFT}\" y=\"{y}\" \
             width=\"{WIDTH}\" height=\"24\" fill=\"#eeeeee\"><title>bytes {from} to \
             {to}</title></rect>",
            y + 16.0,
        );
        for segment in here() {
            let x = LEFT + (address(segment) - from) as f64 * scale;
            let width = (segment.length as f64 * scale).max(0.5);
            let hue = 240.0 * (1.0 - segment.offset as f64 / file.size.max(1) as f64).max(0.0);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"24\" \
                 fill=\"hsl({hue:.0},70%,55%)\"><title>file {} + {} at {}, {}</title></rect>",
                segment.offset,
                segment.length,
                address(segment),
                segment.state,
            );
        }
    }
    out + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::Segment;
    use super::*;

    #[test]
    fn each_segment_is_a_box_in_the_row_of_its_zone() {
        let at = |offset, pag, address| Segment {
            offset,
            length: 4096,
            pag: Some(pag),
            address: Some(address),
            state: "written".into(),
            why: None,
        };
        let segments = vec![at(0, 3, 8192), at(4096, 1, 4096), at(8192, 3, 4096)];
        let picture = svg(&FileLayout::new(("a<b&c".into(), 0), 12288, 0, segments));
        assert!(picture.contains("a&lt;b&amp;c: 12288 bytes, 3 segments"), "{picture}");
        assert_eq!(picture.matches("<rect").count(), 2 + 3, "{picture}");
        assert!(picture.contains("zone 1") && picture.contains("zone 3"), "{picture}");
        // The later half of zone 3 holds the file's beginning.
        assert!(picture.contains("x=\"520.0\" y=\"74\" width=\"450.0\""), "{picture}");
        assert!(picture.contains("hsl(240,"), "{picture}");
    }
}
