"""Operations of torch that multiply no matrices, by name. What is in no table of ours is refused, on every torch.

The promise is that nothing leaks, so an operation that a later torch brings is refused until somebody has looked at it;
a test goes through the registry of the torch that is installed.
"""

from __future__ import annotations

_NAMES = {
    "elementwise functions, reductions, views, indexing, copies": """
        __ilshift__ __irshift__ __lshift__ __rshift__ _add_relu _aminmax _assert_async _assert_scalar
        _assert_tensor_metadata _chunk_cat _conj _conj_physical _copy_from _copy_from_and_resize _cummax_helper
        _cummin_helper _efficientzerotensor _embedding_bag _embedding_bag_forward_only _functional_assert_async
        _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size _fw_primal
        _has_same_storage_numel _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
        _index_put_impl _is_all_true _is_any_true _lazy_clone _linalg_check_errors _logcumsumexp _make_dep_token
        _make_dual _masked_scale _mkldnn_reshape _mkldnn_transpose _neg_view _new_zeros_with_same_feature_meta
        _pdist_forward _pin_memory _prelu_kernel _print _reshape_alias _reshape_copy _resize_output _stack _to_copy
        _transform_bias_rescale_qkv _unique _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index
        _unsafe_masked_index_put_accumulate _unsafe_view abs acos acosh add addcdiv addcmul addr alias all allclose amax
        amin aminmax angle any argmax argmin as_strided as_strided_scatter asin asinh atan atan2 atanh bincount
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor block_diag bucketize cat
        ceil celu clamp clamp_max clamp_min clone complex conj_physical copy copysign cos cosh count_nonzero cummax
        cummin cumprod cumsum deg2rad detach diag_embed diagonal diagonal_scatter dist div elu embedding eq equal erf
        erfc erfinv exp exp2 expand expm1 fill flip floor floor_divide fmax fmin fmod frac frexp gather gcd ge gelu glu
        gt hardshrink hardsigmoid hardswish hardtanh hash_tensor heaviside histc histogram hypot i0 igammac index
        index_add index_fill index_put index_reduce index_select is_pinned is_same_size is_set_to isin isinf isnan
        isneginf isposinf kthvalue lcm ldexp le leaky_relu lerp lgamma lift lift_fresh linalg__powsum linalg_cross log
        log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or
        logical_xor logit logsumexp lt masked_fill masked_scatter masked_select max maximum mean median min minimum mish
        mode mul nan_to_num nanmedian nansum narrow_copy ne neg nextafter nonzero nonzero_static permute polar pow prod
        put rad2deg reciprocal record_stream relu remainder repeat repeat_interleave resize resize_as roll rot90 round
        rrelu_with_noise rrelu_with_noise_functional rsqrt rsub scatter scatter_add scatter_reduce searchsorted
        segment_reduce select select_scatter set sgn shallow_copy_data sigmoid sign signbit silu sin sinc sinh slice
        slice_inverse slice_scatter softplus softshrink sort split split_with_sizes sqrt squeeze stack std std_mean sub
        sum sym_constrain_range sym_constrain_range_for_size t take tan tanh threshold to_mkldnn topk trace transpose
        tril triu trunc unbind unfold unique_consecutive unique_dim unique_dim_consecutive unsafe_split
        unsafe_split_with_sizes unsqueeze var var_mean view view_as_complex view_as_real where xlogy zero
    """,
    "new tensors": """
        arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye from_file full
        full_like hamming_window hann_window kaiser_window linspace logspace new_empty new_empty_strided new_full
        new_ones new_zeros ones ones_like range scalar_tensor zeros zeros_like
    """,
    "random numbers": """
        _philox_key_fold_in _philox_key_split _philox_randint _philox_uniform _sample_dirichlet _standard_gamma
        bernoulli binomial cauchy digamma exponential geometric igamma log_normal multinomial mvlgamma normal poisson
        polygamma rand rand_like randint randint_like randn randn_like random randperm uniform
    """,
    "pooling, padding, interpolation": """
        _adaptive_avg_pool2d _adaptive_avg_pool3d _grid_sampler_2d_cpu_fallback _upsample_bicubic2d_aa
        _upsample_bilinear2d_aa _upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
        adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d channel_shuffle col2im constant_pad_nd
        fractional_max_pool2d fractional_max_pool3d grid_sampler_2d grid_sampler_3d im2col max_pool2d_with_indices
        max_pool3d_with_indices max_unpool2d max_unpool3d mkldnn_adaptive_avg_pool2d mkldnn_max_pool2d mkldnn_max_pool3d
        pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """,
    "normalisation, dropout, softmax": """
        _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _fill_mem_eff_dropout_mask
        _fused_dropout _log_softmax _masked_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _nested_tensor_softmax_with_shape _philox_normal _safe_softmax _softmax
        _sparse_log_softmax _sparse_softmax _weight_norm_interface batch_norm_elemt batch_norm_gather_stats
        batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats embedding_renorm linalg_vector_norm
        log_softmax native_batch_norm native_dropout native_group_norm native_layer_norm native_norm norm
        normal_functional renorm softmax
    """,
    "losses": """
        _ctc_loss binary_cross_entropy binary_cross_entropy_with_logits huber_loss mse_loss multi_margin_loss
        multilabel_margin_loss_forward nll_loss2d_forward nll_loss_forward smooth_l1_loss soft_margin_loss
    """,
    "gradients of functions here": """
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _ctc_loss_backward _dirichlet_grad
        _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward
        _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine_backward
        _fused_rms_norm_backward _grid_sampler_2d_cpu_fallback_backward _log_softmax_backward_data
        _masked_softmax_backward _nested_select_backward _nested_sum_backward _pdist_backward _prelu_kernel_backward
        _segment_reduce_backward _softmax_backward_data _sparse_log_softmax_backward_data _sparse_softmax_backward_data
        _sparse_sum_backward _standard_gamma_grad _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell_backward_impl
        _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
        _weight_norm_interface_backward adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward batch_norm_backward
        batch_norm_backward_elemt batch_norm_backward_reduce binary_cross_entropy_backward diagonal_backward
        elu_backward embedding_dense_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
        gelu_backward glu_backward glu_backward_jvp glu_jvp grid_sampler_2d_backward grid_sampler_3d_backward
        hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward huber_loss_backward
        leaky_relu_backward log_sigmoid_backward logit_backward masked_scatter_backward max_pool2d_backward
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward mkldnn_adaptive_avg_pool2d_backward
        mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward mse_loss_backward multi_margin_loss_backward
        multilabel_margin_loss_backward native_batch_norm_backward native_dropout_backward native_group_norm_backward
        native_layer_norm_backward nll_loss2d_backward nll_loss_backward reflection_pad1d_backward
        reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
        replication_pad3d_backward rrelu_with_noise_backward select_backward sigmoid_backward silu_backward
        slice_backward smooth_l1_loss_backward soft_margin_loss_backward softplus_backward softshrink_backward
        tanh_backward threshold_backward unfold_backward upsample_bicubic2d_backward upsample_bilinear2d_backward
        upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_trilinear3d_backward
    """,
    "Fourier transforms: butterflies": """
        _fft_c2c _fft_c2r _fft_r2c fft_fftfreq fft_rfftfreq
    """,
    "special functions": """
        special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h
        special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l
        special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
        special_xlog1py special_zeta
    """,
    "optimizers, scalers, cells whose products come before": """
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale _foreach_powsum _fused_adagrad _fused_adam
        _fused_adamw _fused_sdp_choice _fused_sgd _thnn_fused_gru_cell _thnn_fused_lstm_cell
    """,
    "codes of quantised tensors": """
        _empty_affine_quantized _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
        _fake_quantize_learnable_per_tensor_affine _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional _make_per_channel_quantized_tensor
        _make_per_tensor_quantized_tensor dequantize empty_quantized fake_quantize_per_channel_affine_cachemask
        fake_quantize_per_tensor_affine_cachemask int_repr q_per_channel_axis q_per_channel_scales
        q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_channel quantize_per_tensor
        quantize_per_tensor_dynamic
    """,
    "other layouts: memory, views, sums": """
        _coalesce _coalesced _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _dimI _dimV _indices
        _jagged_to_padded_dense_forward _local_scalar_dense _nested_compute_contiguous_strides_offsets
        _nested_from_padded _nested_from_padded_and_nested_example _nested_from_padded_tensor _nested_get_jagged_dummy
        _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen _nested_get_offsets _nested_get_ragged_idx
        _nested_get_values _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned
        _nested_tensor_from_tensor_list _nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides
        _nested_view_from_buffer _nested_view_from_jagged _nnz _pack_padded_sequence _padded_dense_to_jagged_forward
        _sparse_broadcast_to _sparse_compressed_tensor_with_dims _sparse_coo_tensor_with_dims
        _sparse_coo_tensor_with_dims_and_tensors _sparse_csr_prod _sparse_csr_sum _sparse_mask_projection _sparse_sum
        _spdiags _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr
        _validate_compressed_sparse_indices _values ccol_indices chunk col_indices copy_sparse_to_sparse crow_indices
        dense_dim indices is_coalesced narrow reshape reshape_as resize_as_sparse row_indices silu_backward
        sparse_compressed_tensor sparse_coo_tensor sparse_dim sparse_mask sparse_resize sparse_resize_and_clear
        to_padded_tensor tril_indices triu_indices value_selecting_reduction_backward values
    """,
    "torch's primitives, beside those named as above": """
        bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 broadcast_in_dim cbrt collapse collapse_view
        convert_element_type copy_strided copy_to device_put erf_inv erfcx fft_c2c fft_c2r fft_r2c imag iota isfinite
        item maximum_value minimum_value ndtri real reshape rev shift_left shift_right_arithmetic spherical_bessel_j0
        split_dim view_of view_of_dtype xor_sum zeta
    """,
}
_FREE = frozenset(" ".join(_NAMES.values()).split())
# Libraries of torch's own that move data between processes, draw random numbers, or look.
_MOVES = frozenset(
    {
        "prim", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "rngprims",
        "debugprims",
    }
)  # fmt: skip


def is_free(name: str) -> bool:
    """Whether an operation, "add" or "prims::add", is known to multiply no matrices.

    With a name come its copying form ("view_copy") and that for a list of tensors ("_foreach_add").
    """
    space, _, short = name.rpartition("::")
    if space:
        return space in _MOVES or (space == "prims" and short in _FREE)
    return short.removeprefix("_foreach_").removesuffix("_copy") in _FREE or short in _FREE
