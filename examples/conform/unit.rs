// A program under test: INT8 products added to INT32, wrapping, as NVIDIA's units do without .satfinite.
// rustc -O unit.rs && fplab conform --unit H100 --format int8 -- ./unit
use std::io::{self, BufRead, Write};

fn main() {
    let stdin = io::stdin();
    let mut out = io::BufWriter::new(io::stdout());
    for line in stdin.lock().lines().map(|line| line.unwrap()) {
        let mut words = line.split_whitespace();
        let k: usize = words.next().unwrap().parse().unwrap();
        let codes: Vec<u32> = words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
        let mut sum = codes[2 * k] as i32;
        for i in 0..k {
            sum = sum.wrapping_add((codes[i] as u8 as i8 as i32) * (codes[k + i] as u8 as i8 as i32));
        }
        writeln!(out, "{:08X}", sum as u32).unwrap();
    }
}
