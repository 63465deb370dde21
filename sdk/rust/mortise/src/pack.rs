//! `pack!`: makes the one exported object of a pack and its metadata note from the same words, at compile time.

/// Lets a table of pointers be a static. Everything in it is constant.
#[repr(transparent)]
pub struct Static<T>(pub T);
unsafe impl<T> Sync for Static<T> {}

/// The ELF note: owner "Mortise", type 1, JSON padded to four bytes.
#[repr(C, align(4))]
pub struct Note<const N: usize> {
    pub name_size: u32,
    pub text_size: u32,
    pub r#type: u32,
    pub name: [u8; 8],
    pub text: [u8; N],
}

/// A piece of the note: JSON as it is, or a text to quote.
pub enum Piece {
    Raw(&'static str),
    Quoted(&'static str),
    /// A comma, except at the beginning of a list.
    Comma,
    Number(u32),
}

const fn ends_list_begin(pieces: &[Piece], i: usize) -> bool {
    match pieces[i - 1] {
        Piece::Raw(text) => text.as_bytes()[text.len() - 1] == b'[',
        _ => false,
    }
}

const fn escaped_size(byte: u8) -> usize {
    if byte == b'"' || byte == b'\\' {
        2
    } else if byte < 0x20 {
        6
    } else {
        1
    }
}

const fn num_digits(number: u32) -> usize {
    if number < 10 { 1 } else { 1 + num_digits(number / 10) }
}

/// The number of bytes of the joined pieces.
pub const fn note_size(pieces: &[Piece]) -> usize {
    let mut size = 0;
    let mut i = 0;
    while i < pieces.len() {
        match pieces[i] {
            Piece::Raw(text) => size += text.len(),
            Piece::Comma => size += if ends_list_begin(pieces, i) { 0 } else { 1 },
            Piece::Number(number) => size += num_digits(number),
            Piece::Quoted(text) => {
                size += 2;
                let mut k = 0;
                while k < text.len() {
                    size += escaped_size(text.as_bytes()[k]);
                    k += 1;
                }
            }
        }
        i += 1;
    }
    size
}

/// The joined pieces; zeros up to N.
pub const fn note_text<const N: usize>(pieces: &[Piece]) -> [u8; N] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut out = [0; N];
    let mut at = 0;
    let mut i = 0;
    while i < pieces.len() {
        let (text, quoted) = match pieces[i] {
            Piece::Raw(text) => (text.as_bytes(), false),
            Piece::Comma => (if ends_list_begin(pieces, i) { "" } else { "," }.as_bytes(), false),
            Piece::Quoted(text) => (text.as_bytes(), true),
            Piece::Number(number) => {
                let size = num_digits(number);
                let (mut rest, mut place) = (number, size);
                while place > 0 {
                    place -= 1;
                    out[at + place] = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                at += size;
                (b"" as &[u8], false)
            }
        };
        if quoted {
            out[at] = b'"';
            at += 1;
        }
        let mut k = 0;
        while k < text.len() {
            let byte = text[k];
            let size = if quoted { escaped_size(byte) } else { 1 };
            if size == 6 {
                let digits = [b'\\', b'u', b'0', b'0', HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]];
                let mut d = 0;
                while d < 6 {
                    out[at + d] = digits[d];
                    d += 1;
                }
            } else {
                if size == 2 {
                    out[at] = b'\\';
                }
                out[at + size - 1] = byte;
            }
            at += size;
            k += 1;
        }
        if quoted {
            out[at] = b'"';
            at += 1;
        }
        i += 1;
    }
    out
}

#[doc(hidden)]
#[macro_export]
macro_rules! __param_type {
    (f64) => { ($crate::sys::MORTISE_PARAM_F64, "f64") };
    (i64) => { ($crate::sys::MORTISE_PARAM_I64, "i64") };
    (bool) => { ($crate::sys::MORTISE_PARAM_BOOL, "bool") };
    (text) => { ($crate::sys::MORTISE_PARAM_TEXT, "text") };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __role {
    () => { ($crate::sys::MORTISE_ROLE_PLAIN, "plain") };
    (column) => { ($crate::sys::MORTISE_ROLE_COLUMN, "column") };
    (file) => { ($crate::sys::MORTISE_ROLE_FILE, "file") };
    (folder) => { ($crate::sys::MORTISE_ROLE_FOLDER, "folder") };
    (model) => { ($crate::sys::MORTISE_ROLE_MODEL, "model") };
    (secret) => { ($crate::sys::MORTISE_ROLE_SECRET, "secret") };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __default_text {
    (text, $value:literal) => { $value };
    ($other:ident, $value:literal) => { stringify!($value) };
}
/// What the table and the note say of each word for a kind: its id, how far outputs depend on other tokens (as number and
/// as text), the type of the vtable, the vtable, and the flags of the class.
#[doc(hidden)]
#[macro_export]
macro_rules! __kind {
    (id reward) => { "mortise.reward/1" };
    (id policy_loss) => { "mortise.policy_loss/1" };
    (id sequence_loss) => { "mortise.policy_loss/1" };
    (id kl_estimator) => { "mortise.kl_estimator/1" };
    (id advantage_estimator) => { "mortise.advantage_estimator/1" };
    (id rollout_backend) => { "mortise.rollout_backend/1" };
    (id environment) => { "mortise.environment/1" };
    (coupling sequence_loss) => { ($crate::sys::MORTISE_COUPLING_ROW, "row") };
    (coupling advantage_estimator) => { ($crate::sys::MORTISE_COUPLING_UPDATE, "update") };
    (coupling $other:ident) => { ($crate::sys::MORTISE_COUPLING_TOKEN, "token") };
    (type reward) => { $crate::sys::mortise_reward_vtable };
    (type policy_loss) => { $crate::sys::mortise_policy_loss_vtable };
    (type sequence_loss) => { $crate::sys::mortise_policy_loss_vtable };
    (type kl_estimator) => { $crate::sys::mortise_kl_estimator_vtable };
    (type advantage_estimator) => { $crate::sys::mortise_advantage_estimator_vtable };
    (type rollout_backend) => { $crate::sys::mortise_rollout_backend_vtable };
    (type environment) => { $crate::sys::mortise_environment_vtable };
    (table reward $class:ty) => { $crate::reward_vtable::<$class>() };
    (table policy_loss $class:ty) => { $crate::policy_loss_vtable::<$class>() };
    (table sequence_loss $class:ty) => { $crate::sequence_loss_vtable::<$class>() };
    (table kl_estimator $class:ty) => { $crate::kl_estimator_vtable::<$class>() };
    (table advantage_estimator $class:ty) => { $crate::advantage_estimator_vtable::<$class>() };
    (table rollout_backend $class:ty) => { $crate::rollout_backend_vtable::<$class>() };
    (table environment $class:ty) => { $crate::environment_vtable::<$class>() };
    (flags reward $class:ty) => {
        $crate::sys::MORTISE_FLAG_CONCURRENT
            | if <$class as $crate::Reward>::TOKEN_REWARDS { $crate::sys::MORTISE_FLAG_TOKEN_REWARDS } else { 0 }
    };
    (flags sequence_loss $class:ty) => {
        $crate::sys::MORTISE_FLAG_CONCURRENT
            | if <$class as $crate::SequenceLoss>::OWN_TOKEN { $crate::sys::MORTISE_FLAG_SURROGATE_GRADIENT } else { 0 }
    };
    (flags advantage_estimator $class:ty) => {
        if <$class as $crate::AdvantageEstimator>::COMPARES_GROUP { $crate::sys::MORTISE_FLAG_COMPARES_GROUP } else { 0 }
    };
    (flags rollout_backend $class:ty) => { 0 };
    (flags environment $class:ty) => { 0 };
    (flags $other:ident $class:ty) => { $crate::sys::MORTISE_FLAG_CONCURRENT };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __reads {
    (flag) => { 0 };
    (flag $class:ty) => { $crate::sys::MORTISE_FLAG_TELLS_READS };
    (slot) => { ::std::option::Option::None };
    (slot $class:ty) => { ::std::option::Option::Some($crate::reads_extension::<$class>) };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __c_text {
    ($text:expr) => { concat!($text, "\0").as_ptr() as *const ::std::os::raw::c_char };
}

/// The descriptor of one plugin, as a pointer to a static.
#[doc(hidden)]
#[macro_export]
macro_rules! __descriptor {
    (
        $kind:ident $name:literal : $class:ty, $summary:literal,
        [$($param:ident : $type:ident = $default:literal $(in $low:literal ..= $high:literal)? $(as $role:ident)?, $doc:literal);*],
        [$($required:literal),*], [$($metric:literal),*], [$($reads:ty)?]
    ) => {{
        static VTABLE: $crate::Static<$crate::__kind!(type $kind)> = $crate::Static($crate::__kind!(table $kind $class));
        const NUM_PARAMS: usize = <[&str]>::len(&[$(stringify!($param)),*]);
        static PARAMS: $crate::Static<[$crate::sys::mortise_param; NUM_PARAMS]> = $crate::Static([$(
            {
                #[allow(unused_mut, unused_assignments)]
                let mut range = (0.0, 0.0, 0);
                $(range = ($low as f64, $high as f64, 1);)?
                let role = $crate::__role!($($role)?).0;
                assert!(role == 0 || $crate::__param_type!($type).0 == $crate::sys::MORTISE_PARAM_TEXT, "only a text has a role");
                $crate::sys::mortise_param {
                    struct_size: ::std::mem::size_of::<$crate::sys::mortise_param>() as u32,
                    r#type: $crate::__param_type!($type).0,
                    name: $crate::__c_text!(stringify!($param)),
                    default_text: $crate::__c_text!($crate::__default_text!($type, $default)),
                    doc: $crate::__c_text!($doc),
                    min: range.0,
                    max: range.1,
                    has_range: range.2,
                    num_choices: 0,
                    choices: ::std::ptr::null(),
                    role,
                    flags: 0,
                }
            }
        ),*]);
        static POINTERS: $crate::Static<[*const $crate::sys::mortise_param; NUM_PARAMS]> = $crate::Static({
            let first = &PARAMS as *const _ as *const $crate::sys::mortise_param;
            let mut out = [first; NUM_PARAMS];
            let mut i = 0;
            while i < NUM_PARAMS {
                out[i] = first.wrapping_add(i);
                i += 1;
            }
            out
        });
        const NUM_REQUIRED: usize = <[&str]>::len(&[$($required),*]);
        static REQUIRED: $crate::Static<[*const ::std::os::raw::c_char; NUM_REQUIRED + 1]> =
            $crate::Static([$($crate::__c_text!($required),)* ::std::ptr::null()]);
        const NUM_METRICS: usize = <[&str]>::len(&[$($metric),*]);
        static METRICS: $crate::Static<[*const ::std::os::raw::c_char; NUM_METRICS + 1]> =
            $crate::Static([$($crate::__c_text!($metric),)* ::std::ptr::null()]);
        static DESCRIPTOR: $crate::Static<$crate::sys::mortise_descriptor> =
            $crate::Static($crate::sys::mortise_descriptor {
                struct_size: ::std::mem::size_of::<$crate::sys::mortise_descriptor>() as u32,
                flags: ($crate::__kind!(flags $kind $class)) | $crate::__reads!(flag $($reads)?),
                kind: $crate::__c_text!($crate::__kind!(id $kind)),
                name: $crate::__c_text!($name),
                summary: $crate::__c_text!($summary),
                doc: ::std::ptr::null(),
                coupling: $crate::__kind!(coupling $kind).0,
                num_params: NUM_PARAMS as u32,
                params: &POINTERS as *const _ as *const *const $crate::sys::mortise_param,
                requires_inputs: &REQUIRED as *const _ as *const *const ::std::os::raw::c_char,
                consumes: ::std::ptr::null(),
                vtable: &VTABLE as *const _ as *const ::std::os::raw::c_void,
                update_metrics: &METRICS as *const _ as *const *const ::std::os::raw::c_char,
                get_extension: $crate::__reads!(slot $($reads)?),
            });
        &DESCRIPTOR as *const _ as *const $crate::sys::mortise_descriptor
    }};
}

/// Makes the pack: its id, and for each plugin `kind "name": Class, "summary"` with its parameters
/// `name: f64|i64|bool|text = default [in low..=high] [as column|file|folder|model|secret], "meaning"`. Plugins are
/// separated by semicolons. The kinds are `reward`, `policy_loss` (a `TokenLoss`), `sequence_loss`, `kl_estimator`,
/// `advantage_estimator`, `rollout_backend` and `environment`. `as` says what the text names, so that the host
/// checks, follows or hides it. Behind the parameters, in this order and each optional: `requires: ["values"]` names
/// optional inputs that the plugin needs; `update_metrics: ["name", "column=name"]` names metrics of a loss that the run
/// writes for every update; `reads: Class` names a class with `TellsReads`. The version is the crate's. Use the macro
/// once per crate. If the pack cannot run in an older host, write `min_host_minor: n,` behind the id. Your own types
/// may have any names, because the macro writes all names of this crate as paths.
#[macro_export]
macro_rules! pack {
    (id: $id:literal, min_host_minor: $min_host:literal, $($plugins:tt)+) => {
        $crate::__pack! { $min_host; id: $id, $($plugins)+ }
    };
    ($($all:tt)+) => {
        $crate::__pack! { $crate::sys::MORTISE_MIN_HOST_MINOR; $($all)+ }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __pack {
    (
        $min_host:expr;
        id: $id:literal,
        $(
            $kind:ident $name:literal : $class:ty, $summary:literal,
            params: [$($param:ident : $type:ident = $default:literal $(in $low:literal ..= $high:literal)? $(as $role:ident)?, $doc:literal);* $(;)?]
            $(, requires: [$($required:literal),+ $(,)?])?
            $(, update_metrics: [$($metric:literal),+ $(,)?])?
            $(, reads: $reads:ty)? $(,)?
        );+ $(;)?
    ) => {
        /// The pack's table, for tests.
        pub fn pack() -> &'static $crate::Static<$crate::sys::mortise_pack> {
            const NUM_PLUGINS: usize = <[&str]>::len(&[$($name),+]);
            static PLUGINS: $crate::Static<[*const $crate::sys::mortise_descriptor; NUM_PLUGINS]> = $crate::Static([$(
                $crate::__descriptor!(
                    $kind $name: $class, $summary,
                    [$($param: $type = $default $(in $low ..= $high)? $(as $role)?, $doc);*],
                    [$($($required),+)?], [$($($metric),+)?], [$($reads)?]
                )
            ),+]);
            #[no_mangle]
            #[allow(non_upper_case_globals)]
            pub static mortise_pack_v1: $crate::Static<$crate::sys::mortise_pack> = $crate::Static($crate::sys::mortise_pack {
                struct_size: ::std::mem::size_of::<$crate::sys::mortise_pack>() as u32,
                abi_minor: $crate::sys::MORTISE_TARGET_MINOR,
                min_host_minor: $min_host,
                num_plugins: NUM_PLUGINS as u32,
                id: $crate::__c_text!($id),
                version: $crate::__c_text!(env!("CARGO_PKG_VERSION")),
                plugins: &PLUGINS as *const _ as *const *const $crate::sys::mortise_descriptor,
                open: ::std::option::Option::None,
            });

            const PIECES: &[$crate::Piece] = &[
                $crate::Piece::Raw("{\"abi\":"), $crate::Piece::Number($crate::sys::MORTISE_ABI_MAJOR),
                $crate::Piece::Raw(",\"abi_minor\":"), $crate::Piece::Number($crate::sys::MORTISE_TARGET_MINOR),
                $crate::Piece::Raw(",\"min_host_minor\":"), $crate::Piece::Number($min_host),
                $crate::Piece::Raw(",\"pack\":{\"id\":"),
                $crate::Piece::Quoted($id),
                $crate::Piece::Raw(",\"version\":"), $crate::Piece::Quoted(env!("CARGO_PKG_VERSION")),
                $crate::Piece::Raw("},\"plugins\":["),
                $(
                    $crate::Piece::Comma, $crate::Piece::Raw("{\"kind\":"), $crate::Piece::Quoted($crate::__kind!(id $kind)),
                    $crate::Piece::Raw(",\"name\":"), $crate::Piece::Quoted($name),
                    $crate::Piece::Raw(",\"summary\":"), $crate::Piece::Quoted($summary),
                    $crate::Piece::Raw(",\"doc\":null,\"flags\":"),
                    $crate::Piece::Number(($crate::__kind!(flags $kind $class)) | $crate::__reads!(flag $($reads)?)),
                    $crate::Piece::Raw(",\"coupling\":"), $crate::Piece::Quoted($crate::__kind!(coupling $kind).1),
                    $crate::Piece::Raw(",\"requires\":["),
                    $($($crate::Piece::Comma, $crate::Piece::Quoted($required),)+)?
                    $crate::Piece::Raw("],\"consumes\":[],\"update_metrics\":["),
                    $($($crate::Piece::Comma, $crate::Piece::Quoted($metric),)+)?
                    $crate::Piece::Raw("],\"params\":["),
                    $(
                        $crate::Piece::Comma, $crate::Piece::Raw("{\"name\":"), $crate::Piece::Quoted(stringify!($param)),
                        $crate::Piece::Raw(",\"type\":"), $crate::Piece::Quoted($crate::__param_type!($type).1),
                        $crate::Piece::Raw(",\"default\":"), $crate::Piece::Quoted($crate::__default_text!($type, $default)),
                        $($crate::Piece::Raw(concat!(",\"min\":", stringify!($low), ",\"max\":", stringify!($high))),)?
                        $($crate::Piece::Raw(",\"role\":"), $crate::Piece::Quoted($crate::__role!($role).1),)?
                        $crate::Piece::Raw(",\"doc\":"), $crate::Piece::Quoted($doc), $crate::Piece::Raw("}"),
                    )*
                    $crate::Piece::Raw("]}"),
                )+
                $crate::Piece::Raw("],\"needs\":[],\"build\":{\"compiler\":\"rustc\"}}"),
            ];
            const SIZE: usize = $crate::note_size(PIECES);
            const PADDED: usize = (SIZE + 3) / 4 * 4;
            #[used]
            #[link_section = ".note.mortise"]
            static NOTE: $crate::Note<PADDED> = $crate::Note {
                name_size: 8,
                text_size: SIZE as u32,
                r#type: 1,
                name: *b"Mortise\0",
                text: $crate::note_text::<PADDED>(PIECES),
            };
            &mortise_pack_v1
        }
    };
}
