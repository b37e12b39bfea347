//! The operators, one file each; the list below is both the module declarations and the registry.

use crate::operator::Operator;

mod shapes;

/// Declares each operator's module, re-exports its static, and lists it.
macro_rules! ops {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        $(mod $module; pub use $module::$name;)+
        /// Every operator.
        pub static ALL: &[&dyn Operator] = &[$(&$name),+];
    };
}

ops! {
    add::ADD,
    linear::LINEAR,
}
