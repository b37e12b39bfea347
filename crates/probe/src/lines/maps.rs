//! Which file an address of a captured process was mapped from, and where in it: `/proc/<id>/maps` as proc(5) describes it.
//! Not here: what is in the file there (`executable.rs`).

/// One mapping of code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// All mappings of code, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Maps(Vec<Mapping>);

impl Maps {
    /// Reads what can be read; lines that are none are passed over, and their addresses are unknown then.
    pub(super) fn parse(text: &str) -> Maps {
        let mut found: Vec<Mapping> = text.lines().filter_map(mapping).collect();
        found.sort_by_key(|mapping| mapping.start);
        Maps(found)
    }

    /// Path and offset in the file of an address.
    pub(super) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let before = self.0.partition_point(|mapping| mapping.start <= address);
        let mapping = self.0.get(before.checked_sub(1)?).filter(|mapping| address < mapping.end)?;
        Some((&mapping.path, (address - mapping.start).checked_add(mapping.offset)?))
    }
}

/// `start-end perms offset device inode path`; the path may hold spaces.
fn mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_start();
        let (word, after) = trimmed.split_once(' ')?;
        rest = after;
        Some(word)
    };
    let (range, permissions, offset, _device, _inode) = (word()?, word()?, word()?, word()?, word()?);
    let (start, end) = range.split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let path = rest.trim_start().trim_end_matches(" (deleted)");
    let mapping = Mapping {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        offset: hexadecimal(offset)?,
        path: path.to_owned(),
    };
    (permissions.contains('x') && !path.is_empty() && mapping.start < mapping.end).then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_with_their_place_in_the_file() {
        let text = "55d0c0000000-55d0c0100000 r--p 00000000 fe:00 123   /opt/hour glass\n\
                    55d0c0100000-55d0c0900000 r-xp 000ff000 fe:00 123   /opt/hour glass\n\
                    7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                    7f1000000000-7f1000001000 r-xp 00001000 fe:00 9   /lib/libc.so.6 (deleted)\n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]\nnonsense\n-\n";
        let maps = Maps::parse(text);
        assert_eq!(maps.find(0x55d0c0100010), Some(("/opt/hour glass", 0xff010)));
        assert_eq!(maps.find(0x55d0c0900000), None, "behind the end");
        assert_eq!(maps.find(0x55d0c0000010), None, "no code");
        assert_eq!(maps.find(0x7f1000000fff), Some(("/lib/libc.so.6", 0x1fff)));
        assert_eq!(maps.find(0), None);
        assert_eq!(maps.find(u64::MAX), None);
    }
}
