//! Source lines as comma-separated values, one row per place and line (RFC 4180).
//! Not here: stacks, and what the columns mean (`lines.rs`).

use crate::capture::lines::LinesRecord;
use crate::capture::place::{Cost, Place};
use std::io::{self, Write};

/// Writes all rows under one line of names. Shares are of the place, as parts of 1; `inclusive_not_summable` columns add up to
/// nothing.
///
/// # Errors
/// What `out` reports.
pub fn write_csv(record: &LinesRecord, out: &mut impl Write) -> io::Result<()> {
    write!(out, "place,operator,kernel,place_samples,rank,file,line,functions,in_repository,verified")?;
    for column in ["self_innermost", "self_in_repository", "inclusive_not_summable"] {
        write!(out, ",{column}_samples,{column}_ns,{column}_share,{column}_low,{column}_high")?;
    }
    out.write_all(b"\r\n")?;
    for place in &record.places {
        let (kind, operator, kernel) = match &place.place {
            Place::Kernel { operator, kernel } => ("kernel", operator.as_str(), kernel.as_str()),
            Place::BarrierWait => ("barrier wait", "", ""),
            Place::Dispatch => ("dispatch", "", ""),
        };
        for row in &place.rows {
            let rank = row.rank.map(|rank| rank.to_string()).unwrap_or_default();
            write!(out, "{kind},{},{},{},{rank},", field(operator), field(kernel), place.cost.samples)?;
            write!(out, "{},{},{}", field(&row.file), row.line, field(&row.functions.join(" | ")))?;
            write!(out, ",{},{}", row.in_repository, row.verified)?;
            for cost in [&row.self_innermost, &row.self_in_repository, &row.inclusive_not_summable] {
                let Cost { samples, weight_ns, share } = cost;
                write!(out, ",{samples},{weight_ns},{:.6},{:.6},{:.6}", share.value, share.low, share.high)?;
            }
            out.write_all(b"\r\n")?;
        }
    }
    Ok(())
}

fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
