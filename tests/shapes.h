/*
 * The shapes that kernels are tested and measured on: the products and rows of DeepSeek-V3, of V2-Lite and of the
 * example model, and odd ones.
 */
#ifndef DS_TESTS_SHAPES_H
#define DS_TESTS_SHAPES_H

#include <stddef.h>

#include "base/tensor.h"

/* A weight matrix [n, k] in the type it is released in; row0: where it begins in its blocks of scales. */
struct shape {
	const char *model, *name;
	size_t n, k;
	enum dtype type;
	size_t row0;
};

static const struct shape shapes[] = {
	{ "V3", "q_a", 1536, 7168, DT_F8_E4M3, 0 },
	{ "V3", "q_b", 24576, 1536, DT_F8_E4M3, 0 },
	{ "V3", "kv_a", 576, 7168, DT_F8_E4M3, 0 },
	{ "V3", "kv_b", 32768, 512, DT_F8_E4M3, 0 },
	{ "V3", "o", 7168, 16384, DT_F8_E4M3, 0 },
	{ "V3", "expert up", 2048, 7168, DT_F8_E4M3, 0 },
	{ "V3", "expert down", 7168, 2048, DT_F8_E4M3, 0 },
	{ "V3", "dense up", 18432, 7168, DT_F8_E4M3, 0 },
	{ "V3", "dense down", 7168, 18432, DT_F8_E4M3, 0 },
	{ "V3", "router", 256, 7168, DT_BF16, 0 },
	{ "V3", "head", 129280, 7168, DT_BF16, 0 },
	{ "V2-Lite", "q", 3072, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "kv_a", 576, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "kv_b", 4096, 512, DT_F8_E4M3, 0 },
	{ "V2-Lite", "o", 2048, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "expert up", 1408, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "expert down", 2048, 1408, DT_F8_E4M3, 0 },
	{ "V2-Lite", "shared up", 2816, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "shared down", 2048, 2816, DT_F8_E4M3, 0 },
	{ "V2-Lite", "dense up", 10944, 2048, DT_F8_E4M3, 0 },
	{ "V2-Lite", "dense down", 2048, 10944, DT_F8_E4M3, 0 },
	{ "V2-Lite", "router", 64, 2048, DT_BF16, 0 },
	{ "V2-Lite", "head", 102400, 2048, DT_BF16, 0 },
	{ "tiny", "q_a", 128, 256, DT_F8_E4M3, 0 },
	{ "tiny", "q_b", 384, 128, DT_F8_E4M3, 0 },
	{ "tiny", "kv_a", 160, 256, DT_F8_E4M3, 0 },
	{ "tiny", "dense up", 512, 256, DT_F8_E4M3, 0 },
	{ "tiny", "dense down", 256, 512, DT_F8_E4M3, 0 },
	{ "tiny", "head", 1024, 256, DT_BF16, 0 },
	{ "odd", "5x1", 5, 1, DT_F8_E4M3, 3 },
	{ "odd", "1x7", 1, 7, DT_BF16, 0 },
	{ "odd", "136x48", 136, 48, DT_F8_E4M3, 60 },
	{ "odd", "33x130", 33, 130, DT_F8_E4M3, 120 },
	{ "odd", "136x576", 136, 576, DT_F16, 100 },
	{ "odd", "70x1400", 70, 1400, DT_F8_E4M3, 127 },
	{ "odd", "9x2200", 9, 2200, DT_F32, 0 },
	{ "odd", "17x12345", 17, 12345, DT_F8_E4M3, 3 },
	{ "odd", "5x40000", 5, 40000, DT_F8_E4M3, 0 },
};

/* Elements of a row: hidden sizes, heads' parts, widths of FFNs, odd ones. */
__attribute__((unused)) static const size_t widths[] = { 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 127, 128, 129, 130, 192,
	256, 512, 576, 1000, 1408, 1536, 2048, 2816, 7168, 10944, 18432 };

#endif
