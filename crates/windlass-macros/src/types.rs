//! What can be told of a type by looking at it.

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
pub(crate) fn answered(ty: &Type) -> &Type {
    match last_segment(ty).filter(|segment| segment.ident == "Reply").map(type_arguments).as_deref() {
        Some([answer]) => answer,
        _ => ty,
    }
}

fn type_argument(argument: &GenericArgument) -> Option<&Type> {
    match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// What makes a type unfit to be decoded from JSON or kept in a journal.
pub(crate) enum Unfit<'a> {
    /// It borrows.
    Borrows(&'a TypeReference),
    /// It has no name.
    Unnamed(&'a Type),
}

/// Looks into the type for something unfit.
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

/// What to take instead of a reference.
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
