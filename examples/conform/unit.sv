// INT8 products added to INT32 in SystemVerilog, called through DPI by unit_sv.cpp:
// Build: verilator --cc --exe --build unit.sv unit_sv.cpp && fplab conform --unit H100 --format int8 -- obj_dir/Vunit
module unit;
    export "DPI-C" function multiply_add;
    function int multiply_add(input byte a, input byte b, input int c);
        return c + int'(a) * int'(b);
    endfunction
endmodule
