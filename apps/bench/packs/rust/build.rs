// The host never unloads a pack, and binds all of its symbols when it loads it.
fn main() {
    for flag in ["nodelete", "now", "relro", "noexecstack"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,{flag}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
