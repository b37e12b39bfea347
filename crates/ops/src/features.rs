//! Instruction-set features, and how a processor executes them: a set, not an order. What a kernel needs, what this machine has,
//! what is masked by argument. Not here: which kernel needs what (the kernels say), and asking the system to enable anything.

use std::fmt;

/// One instruction-set feature that a kernel may need, or a property of the processor that it counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    Avx2,
    Fma,
    F16c,
    Avx512f,
    Avx512bw,
    Avx512vl,
    Avx512dq,
    Avx512vnni,
    Avx512bf16,
    Avx512vbmi,
    AmxTile,
    AmxInt8,
    AmxBf16,
    /// No instruction: an AMD processor with AVX-512, whose pipes for vector additions work beside those that multiply (measured
    /// on Zen 4). Elsewhere additions take the place of products.
    SideAdds,
}

impl Feature {
    pub const ALL: [Feature; 14] = [
        Feature::Avx2,
        Feature::Fma,
        Feature::F16c,
        Feature::Avx512f,
        Feature::Avx512bw,
        Feature::Avx512vl,
        Feature::Avx512dq,
        Feature::Avx512vnni,
        Feature::Avx512bf16,
        Feature::Avx512vbmi,
        Feature::AmxTile,
        Feature::AmxInt8,
        Feature::AmxBf16,
        Feature::SideAdds,
    ];

    /// The name used on the command line and in records (the kernel's `/proc/cpuinfo` spelling without underscores).
    pub const fn name(self) -> &'static str {
        match self {
            Feature::Avx2 => "avx2",
            Feature::Fma => "fma",
            Feature::F16c => "f16c",
            Feature::Avx512f => "avx512f",
            Feature::Avx512bw => "avx512bw",
            Feature::Avx512vl => "avx512vl",
            Feature::Avx512dq => "avx512dq",
            Feature::Avx512vnni => "avx512vnni",
            Feature::Avx512bf16 => "avx512bf16",
            Feature::Avx512vbmi => "avx512vbmi",
            Feature::AmxTile => "amx-tile",
            Feature::AmxInt8 => "amx-int8",
            Feature::AmxBf16 => "amx-bf16",
            Feature::SideAdds => "side-adds",
        }
    }
}

/// A set of [`Feature`]s.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u32);

impl Features {
    pub const NONE: Features = Features(0);

    pub const fn of(features: &[Feature]) -> Features {
        let (mut bits, mut index) = (0, 0);
        while index < features.len() {
            bits |= 1 << features[index] as u32;
            index += 1;
        }
        Features(bits)
    }

    pub const fn contains(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u32) != 0
    }

    /// Those of either set.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Those of `self` that `available` lacks.
    pub const fn missing_from(self, available: Features) -> Features {
        Features(self.0 & !available.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// `self` without the features of `masked`.
    pub const fn without(self, masked: Features) -> Features {
        Features(self.0 & !masked.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.contains(*feature))
    }

    /// Parses a comma-separated list of feature names.
    ///
    /// # Errors
    /// The first unknown name.
    pub fn parse(list: &str) -> Result<Features, String> {
        let mut features = Features::NONE;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let feature = Feature::ALL.into_iter().find(|feature| feature.name() == name);
            features.0 |= 1 << feature.ok_or_else(|| name.to_owned())? as u32;
        }
        Ok(features)
    }

    /// What this processor and operating system offer, detected once.
    pub fn detect() -> Features {
        static DETECTED: std::sync::OnceLock<Features> = std::sync::OnceLock::new();
        *DETECTED.get_or_init(detect)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, feature) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            f.write_str(feature.name())?;
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Features {
    let mut found = Features::NONE;
    let mut add = |present: bool, feature: Feature| {
        if present {
            found.0 |= 1 << feature as u32;
        }
    };
    add(is_x86_feature_detected!("avx2"), Feature::Avx2);
    add(is_x86_feature_detected!("fma"), Feature::Fma);
    add(is_x86_feature_detected!("f16c"), Feature::F16c);
    add(is_x86_feature_detected!("avx512f"), Feature::Avx512f);
    add(is_x86_feature_detected!("avx512bw"), Feature::Avx512bw);
    add(is_x86_feature_detected!("avx512vl"), Feature::Avx512vl);
    add(is_x86_feature_detected!("avx512dq"), Feature::Avx512dq);
    add(is_x86_feature_detected!("avx512vnni"), Feature::Avx512vnni);
    add(is_x86_feature_detected!("avx512bf16"), Feature::Avx512bf16);
    add(is_x86_feature_detected!("avx512vbmi"), Feature::Avx512vbmi);
    add(is_x86_feature_detected!("avx512f") && made_by_amd(), Feature::SideAdds);
    // Tiles fault until the operating system has given leave, so without it the processor might as well have none.
    if processor_has_tiles() && crate::amx::permission().is_ok() {
        let edx = core::arch::x86_64::__cpuid_count(7, 0).edx;
        add(true, Feature::AmxTile);
        add(edx & (1 << 25) != 0, Feature::AmxInt8);
        add(edx & (1 << 22) != 0, Feature::AmxBf16);
    }
    found
}

/// Whether CPUID leaf 0 spells AMD's name, in EBX, EDX and ECX.
#[cfg(target_arch = "x86_64")]
fn made_by_amd() -> bool {
    let leaf = core::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

/// Whether the processor says that it has tiles, whatever the operating system allows. AMX has no stable detection macro:
/// CPUID leaf 7, sub-leaf 0, EDX, bit 24 (bit 22 for bfloat16, 25 for int8).
#[cfg(target_arch = "x86_64")]
pub(crate) fn processor_has_tiles() -> bool {
    core::arch::x86_64::__cpuid(0).eax >= 7 && core::arch::x86_64::__cpuid_count(7, 0).edx & (1 << 24) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Features {
    Features::NONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_prints_and_parses_back() {
        let set = Features::of(&[Feature::Avx2, Feature::Avx512vnni]);
        assert_eq!(set.to_string(), "avx2,avx512vnni");
        assert_eq!(Features::parse("avx512vnni, avx2"), Ok(set));
        assert_eq!(Features::parse("avx2,sse9"), Err("sse9".to_owned()));
        assert_eq!(set.missing_from(Features::of(&[Feature::Avx2])), Features::of(&[Feature::Avx512vnni]));
    }
}
