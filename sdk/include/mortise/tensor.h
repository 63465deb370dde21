/* Borrowed tensor views.
 *
 * `mortise_tensor` has the layout of DLPack's DLTensor (stable since DLPack 0.2), so you may cast a pointer to one into
 * a pointer to the other. It is written out here, so you need no other header. The host guarantees: row-major and
 * contiguous data, strides that are never null, float32 for losses and estimators, int64 for ids, uint8 for masks. The
 * first element, at data + byte_offset, is aligned to 64 bytes. byte_offset may be non-zero: apply it. A view is
 * borrowed until the slot returns, and its data too (on a device: see device.h). Inputs are read-only.
 *
 * Per-token tensors are flat: N tokens of B rows; row i is tokens row_offsets[i] .. row_offsets[i+1]. The padded (B,T)
 * case is row_offsets[i] = i*T. Tokens with mask 0 (a row may have holes) have no meaning.
 */
#ifndef MORTISE_TENSOR_H_
#define MORTISE_TENSOR_H_

#include "abi.h"

/* dtype_code, as in DLPack */
#define MORTISE_INT 0
#define MORTISE_UINT 1
#define MORTISE_FLOAT 2
/* device_type, as in DLPack */
#define MORTISE_CPU 1
#define MORTISE_CUDA 2

/* A frozen leaf. eg: log_prob of 12 tokens: ndim 1, shape {12}, strides {1}, dtype MORTISE_FLOAT 32 x 1. */
typedef struct mortise_tensor {
  void* data;           /* may be null where the tensor has no elements */
  int32_t device_type;  /* MORTISE_CPU or MORTISE_CUDA */
  int32_t device_id;    /* 0 on the CPU */
  int32_t ndim;         /* 1, or 2 for [B,K] */
  uint8_t dtype_code;   /* MORTISE_FLOAT ... */
  uint8_t dtype_bits;   /* 32, 64, 8 */
  uint16_t dtype_lanes; /* 1 */
  int64_t* shape;       /* [ndim]; never written through */
  int64_t* strides;     /* [ndim], in elements; never null here; never written through */
  uint64_t byte_offset;
} mortise_tensor;

/* eg: two rows of 3 and 2 tokens: num_rows 2, num_tokens 5, row_offsets {0, 3, 5}.
 * The places of a call's rows in the flat tensors, and their identity in the whole update. Pointers are host memory. */
typedef struct mortise_layout {
  uint32_t struct_size;
  uint32_t flags;             /* 0 */
  int64_t num_rows;           /* B; may be 0 */
  int64_t num_tokens;         /* N; may be 0 */
  const int64_t* row_offsets; /* [B+1], ascending from 0 to N */
  const int64_t* row_id;      /* [B] place of the row in the whole update: the same for every micro-batch split */
  const int64_t* group_index; /* [B] rows of one prompt share it; global over the step */
} mortise_layout;

/* First element of a view, byte_offset applied. */
static inline void* mortise_tensor_data(const mortise_tensor* t) {
  return t == NULL || t->data == NULL ? NULL : (void*)((char*)t->data + t->byte_offset);
}

#endif /* MORTISE_TENSOR_H_ */
