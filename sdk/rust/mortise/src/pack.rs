//! `pack!`: the one exported object of a pack and its metadata note, both from the same words, at compile time.

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

/// A piece of the note: JSON as it stands, or a text to be quoted.
pub enum Piece {
    Raw(&'static str),
    Quoted(&'static str),
    /// A comma, except at the beginning of a list.
    Comma,
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

/// Bytes of the pieces put together.
pub const fn note_size(pieces: &[Piece]) -> usize {
    let mut size = 0;
    let mut i = 0;
    while i < pieces.len() {
        match pieces[i] {
            Piece::Raw(text) => size += text.len(),
            Piece::Comma => size += if ends_list_begin(pieces, i) { 0 } else { 1 },
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

/// The pieces put together; zeros up to N.
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
macro_rules! __default_text {
    (text, $value:literal) => { $value };
    ($other:ident, $value:literal) => { stringify!($value) };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __kind_name {
    (reward) => { "mortise.reward/1" };
    (policy_loss) => { "mortise.policy_loss/1" };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __vtable {
    (reward, $class:ty) => { $crate::reward_vtable::<$class>() };
    (policy_loss, $class:ty) => { $crate::policy_loss_vtable::<$class>() };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __vtable_type {
    (reward) => { $crate::sys::mortise_reward_vtable };
    (policy_loss) => { $crate::sys::mortise_policy_loss_vtable };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __token_rewards {
    (reward, $class:ty) => { <$class as $crate::Reward>::TOKEN_REWARDS };
    (policy_loss, $class:ty) => { false };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __c_text {
    ($text:expr) => { concat!($text, "\0").as_ptr() as *const ::std::os::raw::c_char };
}

/// Makes the pack: `reward "name": Class, "summary"` or `policy_loss "name": Class, "summary"`, and its parameters
/// `name: f64|i64|bool|text = default [in low..=high], "meaning"`. The version is the crate's. Once per crate. Whatever
/// your own types are called, they do not meet names of the crate: here all are written as paths.
#[macro_export]
macro_rules! pack {
    (
        id: $id:literal,
        $kind:ident $name:literal : $class:ty, $summary:literal,
        params: [$($param:ident : $type:ident = $default:literal $(in $low:literal ..= $high:literal)?, $doc:literal);* $(;)?]
    ) => {
        /// The pack's table, for tests.
        pub fn pack() -> &'static $crate::Static<$crate::sys::mortise_pack> {
            const TOKEN_REWARDS: bool = $crate::__token_rewards!($kind, $class);
            static VTABLE: $crate::Static<$crate::__vtable_type!($kind)> = $crate::Static($crate::__vtable!($kind, $class));
            const NUM_PARAMS: usize = <[&str]>::len(&[$(stringify!($param)),*]);
            static PARAMS: $crate::Static<[$crate::sys::mortise_param; NUM_PARAMS]> = $crate::Static([$(
                {
                    #[allow(unused_mut, unused_assignments)]
                    let mut range = (0.0, 0.0, 0);
                    $(range = ($low as f64, $high as f64, 1);)?
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
            const CONCURRENT: u32 = $crate::sys::MORTISE_FLAG_CONCURRENT;
            const FLAGS: u32 = CONCURRENT | if TOKEN_REWARDS { $crate::sys::MORTISE_FLAG_TOKEN_REWARDS } else { 0 };
            static DESCRIPTOR: $crate::Static<$crate::sys::mortise_descriptor> =
                $crate::Static($crate::sys::mortise_descriptor {
                    struct_size: ::std::mem::size_of::<$crate::sys::mortise_descriptor>() as u32,
                    flags: FLAGS,
                    kind: $crate::__c_text!($crate::__kind_name!($kind)),
                    name: $crate::__c_text!($name),
                    summary: $crate::__c_text!($summary),
                    doc: ::std::ptr::null(),
                    coupling: $crate::sys::MORTISE_COUPLING_TOKEN,
                    num_params: NUM_PARAMS as u32,
                    params: &POINTERS as *const _ as *const *const $crate::sys::mortise_param,
                    requires_inputs: ::std::ptr::null(),
                    consumes: ::std::ptr::null(),
                    vtable: &VTABLE as *const _ as *const ::std::os::raw::c_void,
                });
            static PLUGINS: $crate::Static<[*const $crate::sys::mortise_descriptor; 1]> =
                $crate::Static([&DESCRIPTOR as *const _ as *const $crate::sys::mortise_descriptor]);
            #[no_mangle]
            #[allow(non_upper_case_globals)]
            pub static mortise_pack_v0: $crate::Static<$crate::sys::mortise_pack> = $crate::Static($crate::sys::mortise_pack {
                struct_size: ::std::mem::size_of::<$crate::sys::mortise_pack>() as u32,
                abi_minor: $crate::sys::MORTISE_TARGET_MINOR,
                min_host_minor: $crate::sys::MORTISE_TARGET_MINOR,
                num_plugins: 1,
                id: $crate::__c_text!($id),
                version: $crate::__c_text!(env!("CARGO_PKG_VERSION")),
                plugins: &PLUGINS as *const _ as *const *const $crate::sys::mortise_descriptor,
                open: ::std::option::Option::None,
            });

            const PIECES: &[$crate::Piece] = &[
                $crate::Piece::Raw("{\"abi\":0,\"abi_minor\":1,\"min_host_minor\":1,\"pack\":{\"id\":"),
                $crate::Piece::Quoted($id),
                $crate::Piece::Raw(",\"version\":"), $crate::Piece::Quoted(env!("CARGO_PKG_VERSION")),
                $crate::Piece::Raw("},\"plugins\":[{\"kind\":"), $crate::Piece::Quoted($crate::__kind_name!($kind)),
                $crate::Piece::Raw(",\"name\":"), $crate::Piece::Quoted($name),
                $crate::Piece::Raw(",\"summary\":"), $crate::Piece::Quoted($summary),
                $crate::Piece::Raw(",\"doc\":null,\"flags\":"), $crate::Piece::Raw(if TOKEN_REWARDS { "258" } else { "2" }),
                $crate::Piece::Raw(",\"coupling\":\"token\",\"requires\":[],\"consumes\":[],\"params\":["),
                $(
                    $crate::Piece::Comma, $crate::Piece::Raw("{\"name\":"), $crate::Piece::Quoted(stringify!($param)),
                    $crate::Piece::Raw(",\"type\":"), $crate::Piece::Quoted($crate::__param_type!($type).1),
                    $crate::Piece::Raw(",\"default\":"), $crate::Piece::Quoted($crate::__default_text!($type, $default)),
                    $($crate::Piece::Raw(concat!(",\"min\":", stringify!($low), ",\"max\":", stringify!($high))),)?
                    $crate::Piece::Raw(",\"doc\":"), $crate::Piece::Quoted($doc), $crate::Piece::Raw("}"),
                )*
                $crate::Piece::Raw("]}],\"needs\":[],\"build\":{\"compiler\":\"rustc\"}}"),
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
            &mortise_pack_v0
        }
    };
}
