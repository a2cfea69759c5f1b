//! Syntactic checks of types.

use syn::{GenericArgument, PathArguments, PathSegment, Type, TypeReference};

/// The type without the invisible groups and parentheses around it.
pub(crate) fn plain(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => plain(&group.elem),
        Type::Paren(paren) => plain(&paren.elem),
        _ => ty,
    }
}

/// `Vec<T>` of `std::vec::Vec<T>`.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match plain(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// The types between a segment's angle brackets.
pub(crate) fn type_arguments(segment: &PathSegment) -> Vec<&Type> {
    match &segment.arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().filter_map(type_argument).collect(),
        _ => Vec::new(),
    }
}

/// `T` of `Reply<T>`; any other type as it is.
pub(crate) fn reply_type(ty: &Type) -> &Type {
    match last_segment(ty).filter(|segment| segment.ident == "Reply").map(type_arguments).as_deref() {
        Some([reply]) => reply,
        _ => ty,
    }
}

/// Whether a type is named like one of the standard library and everything in it is, too: it can be decoded.
pub(crate) fn is_of_std(ty: &Type) -> bool {
    const NAMES: &[&str] = &[
        "bool", "char", "f32", "f64", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
        "isize", "String", "PathBuf", "Option", "Vec", "Box", "HashMap", "BTreeMap", "HashSet", "BTreeSet", "Value",
    ];
    last_segment(ty).is_some_and(|segment| {
        NAMES.iter().any(|name| segment.ident == name) && type_arguments(segment).into_iter().all(is_of_std)
    })
}

fn type_argument(argument: &GenericArgument) -> Option<&Type> {
    match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// Why a type cannot be decoded from JSON or stored in a journal.
pub(crate) enum Unfit<'a> {
    /// It is a reference.
    Borrows(&'a TypeReference),
    /// It is `impl Trait` or `_`.
    Unnamed(&'a Type),
}

/// Searches a type and its parameters for something unfit.
pub(crate) fn unfit(ty: &Type) -> Option<Unfit<'_>> {
    match plain(ty) {
        Type::Reference(reference) => Some(Unfit::Borrows(reference)),
        Type::ImplTrait(_) | Type::Infer(_) => Some(Unfit::Unnamed(ty)),
        Type::Array(array) => unfit(&array.elem),
        Type::Slice(slice) => unfit(&slice.elem),
        Type::Tuple(tuple) => tuple.elems.iter().find_map(unfit),
        Type::Path(path) => path.path.segments.iter().flat_map(type_arguments).find_map(unfit),
        _ => None,
    }
}

/// The suggestion instead of a reference.
pub(crate) fn owned(reference: &TypeReference) -> &'static str {
    match plain(&reference.elem) {
        Type::Slice(_) => "take `Vec<…>`",
        elem => match last_segment(elem).map(|segment| segment.ident.to_string()).as_deref() {
            Some("str") => "take `String`",
            Some("Path") => "take `PathBuf`",
            _ => "take it by value, without the `&`",
        },
    }
}
