"""Programs and schedules to read, written by hand."""

# A loop of five trips that counts down by two, with a loop of three inside it whose limit is carried along.
WRITTEN = """HloModule written, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[4,8], s32[])) -> (s32[], f32[4,8], s32[]) {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %limit = s32[] get-tuple-element(%p), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %r = f32[4,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}, s32[]) tuple(%next, %r, %limit)
}

%inner_condition (p: (s32[], f32[4,8], s32[])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] get-tuple-element(%p), index=2
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] subtract(%i, %two)
  %zero = s32[] constant(0)
  %three = s32[] constant(3)
  %start = (s32[], f32[4,8]{1,0}, s32[]) tuple(%zero, %x, %three)
  %inner = (s32[], f32[4,8]{1,0}, s32[]) while(%start), condition=%inner_condition, body=%inner_body
  %y = f32[4,8]{1,0} get-tuple-element(%inner), index=1
  %z = f32[4,8]{1,0} negate(%y), backend_config={"estimated_cycles":"10"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%next, %z)
}

%outer_condition (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %zero = s32[] constant(0)
  ROOT %greater = pred[] compare(%i, %zero), direction=GT
}

%sliced (stack: f32[16,8], i: s32[]) -> f32[2,8] {
  %stack = f32[16,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %piece = f32[2,8]{1,0} dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={2,8}
}

ENTRY %main (x: f32[4,8], stack: f32[16,8]) -> (f32[4,8], f32[2,8]) {
  %x = f32[4,8]{1,0} parameter(0)
  %stack = f32[16,8]{1,0} parameter(1)
  %nine = s32[] constant(9)
  %start = (s32[], f32[4,8]{1,0}) tuple(%nine, %x)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%outer_condition, body=%outer_body
  %y = f32[4,8]{1,0} get-tuple-element(%loop), index=1
  %moved = f32[4,8]{1,0:S(1)} copy(%y), backend_config={"estimated_cycles":"7"}
  %gathered = f32[32,8]{1,0} all-gather(%moved), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
  %piece = f32[2,8]{1,0:S(1)} fusion(%stack, %nine), kind=kLoop, calls=%sliced
  ROOT %t = (f32[4,8]{1,0}, f32[2,8]{1,0}) tuple(%moved, %piece)
}
"""


# Two bundles before a loop of 18 trips, whose pipeline does its three bundles of work (0x4 to 0x6) in 16 of them.
SCHEDULE = """
     0   :  { %3 = vsyncpa [#allocation4], 0 } /* entry bundle: %fusion = fusion(%a, %b) */
   0x1   :  { %s9 = smov.u32 0 }
   0x2 LB: > { %p1_p1 = scmp.ge.s32.totalorder %s13_s13, 1  ;;  %p2_p2 = scmp.lt.s32.totalorder %s13_s13, 17 }
   0x3   : > { %p3_p3 = pnand %p1_p1, %p2_p2  ;;  %101 = sbr.rel (%p3_p3) target = $region25 }
   0x4   :  {}
   0x5   : > { %v1 = vadd.f32 %v2, %v3 /*
window_bounds: (64, 4)
 */ }
   0x6   : > { %v4 = vmul.f32 %v1, %v1 }
   0x7 PF: > { %s11_s13 = sadd.s32 1, %s13_s13 } /* Start/End empty region 25 */
   0x8   : > { %p8_p13 = scmp.ge.s32.totalorder %s11_s13, 18 /* loop exit test */ }
   0x9   :  { %10 = sbr.rel (!%p8_p13) target = $region26 }
   0xa   :  {}
   0xb   :  { %78 = vsyncpa [#allocation4], 1 }
"""

# A program: three bundles before its first call; a loop with two before a call, one before the next and three behind
# it; a loop of five trips without a call; two bundles before the last call.
TOP_LEVEL = """
   0x0   :  { %s1 = smov.u32 0 }
   0x1   :  { %s2 = smov.u32 1 }
   0x2   :  { %11 = inlined_call %s1_s0 /* %fusion.1 = fusion(%a, %b) */ }
   0x3 LB: > { %s3 = sadd.s32 1, %s3 }
   0x4   : > { %12 = inlined_call %s1_s0, %s2_s1 /* %copy.2 = copy(%fusion.1) */ }
   0x5   : > { %13 = inlined_call %s1_s0 /* %fusion.3 = fusion(%copy.2) */ }
   0x6   : > { %s4 = sadd.s32 1, %s4 }
   0x7   : > { %14 = sbr.rel (!%p1_p1) target = $region7 }
   0x8   :  {}
   0x9   :  { %s5 = smov.u32 0 }
   0xa LB: > { %s6 = sadd.s32 1, %s6 }
   0xb   : > { %p5_p5 = scmp.ge.s32.totalorder %s6_s6, 5 /* loop exit test */ }
   0xc   :  { %s7 = smov.u32 0 }
   0xd   :  { %15 = inlined_call %s1_s0 /* %fusion.4 = fusion(%fusion.3) */ }
"""
