"""Drawing one of the allowed ids; see the .pxd."""

from libc.math cimport INFINITY, exp
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, qsort

from cpython.bool cimport PyBool_Check
from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.float cimport PyFloat_CheckExact
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from ._ingest cimport plain_int
from ._logits cimport row_argmax, row_gather
from ._rows cimport row_open, row_t
from ._types cimport index_t, token_t

from .errors import InvalidArgument, InvalidType, OutOfMemory

cdef struct place_t:
    float logit
    index_t place            # in the list of allowed ids


cdef double number(object value, str what) except? -1:
    if PyFloat_CheckExact(value):
        return value
    try:
        if not PyBool_Check(value) and not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except TypeError:
        pass
    raise InvalidType(f"{what} must be a number, got {type(value).__name__}")


cdef int options_read(
    options_t* out, object temperature, object top_k, object top_p, object min_p
) except -1:
    out.temperature = number(temperature, "temperature")
    if not 0 <= out.temperature < INFINITY:
        raise InvalidArgument(
            f"temperature must be finite and not negative, got {temperature}"
        )
    count = plain_int(top_k, "top_k")
    if count < 0:
        raise InvalidArgument(f"top_k must not be negative, got {top_k}")
    out.top_k = min(count, 2**62)
    out.top_p = number(top_p, "top_p")
    if not 0 < out.top_p <= 1:
        raise InvalidArgument(f"top_p must lie in (0, 1], got {top_p}")
    out.min_p = number(min_p, "min_p")
    if not 0 <= out.min_p <= 1:
        raise InvalidArgument(f"min_p must lie in [0, 1], got {min_p}")
    return 0


cdef object bit_generator_of(object rng):
    source = getattr(rng, "bit_generator", rng)
    if not PyCapsule_IsValid(getattr(source, "capsule", None), "BitGenerator"):
        raise InvalidType(
            "rng must be a numpy.random.Generator or BitGenerator, got "
            f"{type(rng).__name__}"
        )
    return source


cdef bitgen_t* bitgen_of(object source) except NULL:
    return <bitgen_t*>PyCapsule_GetPointer(source.capsule, "BitGenerator")


cdef size_t sample_room(index_t n) noexcept nogil:
    return n * (sizeof(double) + sizeof(place_t))


cdef int by_logit(const void* a, const void* b) noexcept nogil:
    """Highest logit first, then lowest id."""
    cdef const place_t* x = <const place_t*>a
    cdef const place_t* y = <const place_t*>b
    if x.logit != y.logit:
        return 1 if x.logit < y.logit else -1
    return (x.place > y.place) - (x.place < y.place)


cdef index_t weigh(
    place_t* places, index_t n, double temperature, double* weight
) noexcept nogil:
    """Write the weight of each id, 1 for the highest; returns how many are above 0.

    Ids without a weight are taken out of `places`.
    """
    cdef float top = -INFINITY
    cdef index_t i, kept = 0
    for i in range(n):
        top = max(top, places[i].logit)
    for i in range(n):
        if top == INFINITY:  # those at +inf share everything
            weight[i] = places[i].logit == INFINITY
        elif places[i].logit > -INFINITY:
            weight[i] = exp((<double>places[i].logit - top) / temperature)
        else:
            weight[i] = 0
        if weight[i] > 0:
            places[kept] = places[i]
            kept += 1
    return kept


cdef index_t nucleus(
    const place_t* places, index_t n, const double* weight, double top_p
) noexcept nogil:
    """Count the first places that together reach top_p of the weight."""
    cdef double total = 0, reached = 0
    cdef index_t i
    for i in range(n):
        total += weight[places[i].place]
    for i in range(n):
        reached += weight[places[i].place]
        if reached >= top_p * total:
            return i + 1
    return n


cdef index_t draw(
    const double* weight, index_t n, double total, bitgen_t* bits
) noexcept nogil:
    cdef double at = bits.next_double(bits.state) * total, reached = 0
    cdef index_t i, last = 0
    for i in range(n):
        if weight[i] > 0:
            reached += weight[i]
            if reached > at:
                return i
            last = i
    return last                  # rounding: the sum fell short of the total


cdef int64_t row_sample(
    const row_t* row, const token_t* ids, index_t n, const options_t* options,
    void* room, bitgen_t* bits,
) noexcept nogil:
    cdef double* weight = <double*>room
    cdef place_t* places = <place_t*>(weight + n)
    cdef float* logits = <float*>room  # until the weights are written
    cdef index_t i, left, only = 0, kept = 0
    cdef double total = 0
    if options.temperature == 0:
        return row_argmax(row, ids, n)
    row_gather(row, ids, n, logits)
    for i in range(n):
        places[i].logit = logits[i] if logits[i] > -INFINITY else -INFINITY
        places[i].place = i
    left = weigh(places, n, options.temperature, weight)
    if left == 0:
        return -1
    if options.top_k or options.top_p < 1:
        qsort(places, left, sizeof(place_t), by_logit)
        if options.top_k and options.top_k < left:
            left = <index_t>options.top_k
        if options.top_p < 1:
            left = nucleus(places, left, weight, options.top_p)
    # Whoever is out gets a weight below zero: the draw goes by id, whatever was sorted.
    for i in range(n):
        weight[i] = -weight[i]
    for i in range(left):
        if -weight[places[i].place] >= options.min_p:
            weight[places[i].place] = -weight[places[i].place]
            only = places[i].place
            kept += 1
    if kept == 1:
        return only
    for i in range(n):
        total += max(weight[i], 0.0)
    return draw(weight, n, total, bits)


cdef int64_t ids_sample(
    object logits, object dtype, token_t n_vocab, const token_t* ids, index_t n,
    const options_t* options, bitgen_t* bits,
) except -2:
    cdef Py_buffer view
    cdef row_t row
    cdef int64_t drawn = -1
    cdef void* room
    row_open(logits, 1, n_vocab, False, dtype, &view, &row)
    room = malloc(sample_room(n))
    if room != NULL:
        drawn = row_sample(&row, ids, n, options, room, bits)
    PyBuffer_Release(&view)
    free(room)
    if room == NULL:
        raise OutOfMemory(f"no memory to draw from {n} ids")
    return -1 if drawn < 0 else ids[drawn]
